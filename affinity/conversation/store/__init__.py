"""Conversations in a provider: the contract of their verbs, and the part of each engine."""
