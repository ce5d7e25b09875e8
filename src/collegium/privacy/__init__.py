"""What leaves an owner and what it tells: sensitivity, ledger, the memory of releases."""
