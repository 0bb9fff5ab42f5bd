"""Providers: the databases in which workers meet. The contract is `affinity.provider.contract`."""

from affinity.provider.urls import change_rights, has_password, inspect_schema, migrate, open_provider, redact

__all__ = ["change_rights", "has_password", "inspect_schema", "migrate", "open_provider", "redact"]
