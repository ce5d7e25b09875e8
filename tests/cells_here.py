"""Cells of a suite in the process of the test."""

import os


def in_process(cell, threads):
    """Cells in this process: quicker, and what they do can be watched."""

    class Done:
        exitcode, sentinel = 0, os.open(os.devnull, os.O_RDONLY)

        def is_alive(self):
            return False

        def join(self):
            pass

        terminate = join

    cell.run()
    return Done()
