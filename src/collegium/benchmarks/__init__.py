"""Benchmark suites: recipes × variants × seeds, and their tables."""
