"""What the coordinator does: merge, router, joint tuning, the unified folder."""
