"""Providers: the databases in which workers meet. The contract is `affinity.provider.contract`."""

from affinity.provider.opening import change_rights, inspect_schema, migrate, open_provider
from affinity.provider.urls import has_password, redact

__all__ = ["change_rights", "has_password", "inspect_schema", "migrate", "open_provider", "redact"]
