"""Providers: the databases in which workers meet. The contract is `affinity.provider.contract`."""

from affinity.provider.backend import Backend, CheckingBackend, OpenOptions
from affinity.provider.checks import CheckLevel, CheckResult
from affinity.provider.opening import change_rights, check_database, inspect_schema, open_provider
from affinity.provider.opening import migrate as migrate
from affinity.provider.schema import Progress, SchemaReport
from affinity.provider.timeline import Timeline
from affinity.provider.urls import has_password, redact, sqlite_path

# A name imported as itself, `X as X`, is for the rest of this tree: its public place is another (docs/learn/names.md).
__all__ = [
    "Backend",
    "CheckLevel",
    "CheckResult",
    "CheckingBackend",
    "OpenOptions",
    "Progress",
    "SchemaReport",
    "Timeline",
    "change_rights",
    "check_database",
    "has_password",
    "inspect_schema",
    "open_provider",
    "redact",
    "sqlite_path",
]
