"""The rules of limits."""
