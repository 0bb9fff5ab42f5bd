"""Limits, priorities, and what waits at them."""
