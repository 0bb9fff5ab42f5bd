"""Trends in a provider: the contract of its verbs, and the part of each engine."""
