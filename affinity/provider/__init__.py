"""Providers: the databases in which workers meet. The contract is `affinity.provider.contract`."""

from affinity.provider.urls import inspect_schema, migrate, open_provider, redact

__all__ = ["inspect_schema", "migrate", "open_provider", "redact"]
