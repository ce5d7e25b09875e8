"""Texts and labels: named data, files, folders and hub data; read with clear faults, split without leaks."""
