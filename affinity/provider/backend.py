"""What opens the databases of a URL scheme, for the registry in `opening`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from affinity.limits import PROBE_AFTER
from affinity.provider.checks import CheckResult
from affinity.provider.contract import Provider
from affinity.provider.schema import Progress, SchemaReport
from affinity.provider.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOptions:
    """The options of `affinity.provider.open_provider`. A backend heeds ``timeline``, the others where they apply."""

    application_name: str = "affinity"
    timeline: Timeline | None = None
    one_connection: bool = False
    as_client: bool = False
    probe_after: float = PROBE_AFTER
    log_warnings: bool = False


@runtime_checkable
class Backend(Protocol):
    """The calls of `affinity.provider` that take a URL, for the URLs of one scheme: a module, or an object.

    Each raises the errors that the function of its name documents. A URL reaches it as the user wrote it, so no message
    of an error may quote it.
    """

    async def open(self, url: str, options: OpenOptions) -> Provider:
        """Connect to a migrated database, for `affinity.provider.open_provider`."""
        ...

    async def migrate(self, url: str, progress: Progress) -> tuple[int, int]:
        """Bring the schema up to date, for `affinity.migrate`."""
        ...

    async def inspect_schema(self, url: str) -> SchemaReport:
        """Report the state of the schema, for `affinity.provider.inspect_schema`."""
        ...

    async def change_rights(
        self,
        url: str,
        *,
        clients: Collection[str],
        workers: Collection[str],
        scalers: Collection[str],
        readers: Collection[str],
        revoke: Collection[str],
    ) -> None:
        """Grant and revoke rights, for `affinity.provider.change_rights`. Without roles it raises `InvalidOptions`."""
        ...


@runtime_checkable
class CheckingBackend(Protocol):
    """The call of a `Backend` that can say what a database has and lacks. Without it the schema alone is checked."""

    async def check(self, url: str) -> Sequence[CheckResult]:
        """Look at the database, for `affinity.provider.check_database`. It changes nothing; a database that cannot be
        reached is a result.
        """
        ...
