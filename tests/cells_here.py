"""Cells of a suite in the process of the test, and what holds for suites of both kinds."""

import os
import shutil

from collegium.benchmarks import cells as module
from collegium.benchmarks.run_suite import run_suite, tabulate
from collegium.benchmarks.suite import load_suite
from collegium.benchmarks.tables import FILES


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


def check_that_records_stand_for_folders(out, results, suite_path, empty, monkeypatch):
    """With the records alone in a folder, the same tables are made and nothing is run."""
    shutil.copy(out / "rows.jsonl", empty)
    monkeypatch.setattr(module, "_start", None)
    run_suite(*load_suite(str(suite_path)), empty)
    again = tabulate(*load_suite(str(suite_path)), empty)
    assert again.rows == results.rows
    assert not again.missing
    for name in FILES:
        assert (empty / name).read_bytes() == (out / name).read_bytes()
