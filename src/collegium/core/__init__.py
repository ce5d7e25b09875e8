"""The ground everything stands on: errors, settings, artifacts, shapes, random streams, progress."""
