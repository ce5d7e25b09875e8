"""The whole flow in one process."""
