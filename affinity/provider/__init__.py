"""Providers: the databases in which workers meet. The contract is `affinity.provider.contract`."""

from affinity.provider.urls import migrate, open_provider, redact

__all__ = ["migrate", "open_provider", "redact"]
