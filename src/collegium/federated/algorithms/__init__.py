"""Federated algorithms, a file each."""
