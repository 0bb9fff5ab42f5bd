"""What a look at a database has found: one record for each check, for `affinity check` and for the start of a worker.

Each engine has its checks: `affinity.provider.postgres.checks` and `affinity.provider.sqlite.checks`. They change
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from affinity.provider.schema import HOW_TO_MIGRATE, SchemaReport

logger: logging.Logger = logging.getLogger("affinity.provider")

HOW_TO_CONNECT: Final = (
    "start the server, or give the URL of another one; "
    "for one that refuses, mend the user, the password or the database in the URL"
)

CheckLevel: TypeAlias = Literal["ok", "warning", "error"]
"""``warning``: workers run, and something is slower or less safe. ``error``: workers cannot run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What a check has found."""

    check: str  # what was looked at, in one word
    level: CheckLevel
    found: str
    remedy: str | None = None  # None: nothing has to be done


def ok(check: str, found: str) -> CheckResult:
    """Return the result that nothing has to be done."""
    return CheckResult(check=check, level="ok", found=found)


def warning(check: str, found: str, remedy: str) -> CheckResult:
    """Return the result that workers run, and that something is slower or less safe."""
    return CheckResult(check=check, level="warning", found=found, remedy=remedy)


def error(check: str, found: str, remedy: str | None) -> CheckResult:
    """Return the result that workers cannot run."""
    return CheckResult(check=check, level="error", found=found, remedy=remedy)


def check_schema(report: SchemaReport, *, may_migrate: bool) -> CheckResult:
    """Say whether this code can use the schema; ``may_migrate``: whoever asks may bring it up to date."""
    name, known = "schema", report.known
    state = f"version {report.version}, and this code needs version {known}" if report.version else "never migrated"
    if report.oldest_code > known:
        return error(
            name, f"version {report.version}, which is newer than this code", "use a later release of affinity"
        )
    if not report.is_usable:
        return (warning if may_migrate else error)(name, state, HOW_TO_MIGRATE)
    if report.behind:
        behind = " and ".join(report.behind)
        return warning(name, f"{behind} behind the tables, as after a restore of rows only", HOW_TO_MIGRATE)
    return ok(name, f"version {report.version}")


def log_warnings(place: str, results: Iterable[CheckResult]) -> None:
    """Log what workers run with, and should not; ``place`` begins each line."""
    for result in results:
        if result.level == "warning":
            logger.warning("%s: %s; %s", place, result.found, result.remedy)
