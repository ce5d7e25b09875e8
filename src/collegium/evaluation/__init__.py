"""How right a model is, and where it sends what."""
