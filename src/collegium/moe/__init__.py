"""Mixture-of-Experts layers and models. Imports nothing of ours: its files travel inside a unified model's folder."""
