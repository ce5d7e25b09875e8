"""Federated rounds: algorithms as arithmetic on named arrays, and engines that carry their messages."""
