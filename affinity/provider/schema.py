"""The version of a database's schema, and which code may use it; for both engines.

The schema version is the number of migrations that were applied; the table ``migrations`` has a row for each. A
migration *expands*: code that was written before it works as before. A migration that removes or changes a thing that
older code uses *contracts*. It has the line ``-- oldest code: N``: from then on only code that knows schema version N
or a later version may use the database.

So a database has two numbers: its version, and the *oldest code*. Code that knows the versions up to K may use it when
``oldest code <= K <= version``. The folder ``schema`` of a provider has the kernel's schema by subject, and each guest
has its own, as they are after the last migration. Until 0.1.0 is released these are migration 0001; from then on
migrations are files of their own.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, LiteralString, TypeAlias

from affinity.errors import SchemaMismatch
from affinity.guests import folders
from affinity_workflows import VERSION

logger: logging.Logger = logging.getLogger("affinity.provider")

Progress: TypeAlias = Callable[[str], object]
"""Receives a readable line at each step of a migration, and while it waits."""

RECENT_RECORDS: Final = 1_000
"""Number of session records, the last written ones, in which a migration looks for epochs above the sequence."""

FIRST: Final = "0001_schema"
"""The migration that makes the schema of the first release."""

_FILE: Final = re.compile(r"(?P<number>\d{4})_\w+")
_OLDEST_CODE: Final = re.compile(r"^-- oldest code: (?P<version>\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema."""

    version: int  # of the schema, afterwards
    name: str  # of its file
    script: LiteralString

    @property
    def oldest_code(self) -> int:
        """The schema version that code must know from now on, unless an earlier migration demands a later version."""
        found = _OLDEST_CODE.search(self.script)
        return int(found["version"]) if found else 1


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """The schema version of a database and the oldest code that may use it."""

    version: int  # 0: without a schema
    oldest_code: int  # the schema version that code must know to use it
    release: str | None = None  # of affinity that applied the migration of that version; None: not known


HOW_TO_MIGRATE: Final = "run `affinity migrate`, or `await affinity.migrate(url)` in Python"
"""Ends the message about a database without the schema that this code needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaReport:
    """The schema's state, and the migrations that `migrate` would apply."""

    version: int  # of the schema; 0: without a schema
    oldest_code: int  # the schema version that code must know to use it
    known: int  # the schema version that this code knows
    pending: tuple[str, ...]  # migrations that `migrate` would apply
    behind: tuple[str, ...]  # sequences behind their tables, after a restore, which `migrate` would repair

    @property
    def is_usable(self) -> bool:
        """True if this code may use the schema as it is."""
        return self.oldest_code <= self.known <= self.version


def report(found: SchemaVersion, migrations: Sequence[Migration], behind: Sequence[str]) -> SchemaReport:
    """Return the report for a schema."""
    return SchemaReport(
        version=found.version,
        oldest_code=found.oldest_code,
        known=len(migrations),
        pending=tuple(migration.name for migration in migrations[found.version :]),
        behind=tuple(behind),
    )


def report_applied(progress: Progress, migration: Migration, before: int, after: int) -> None:
    """Report that a migration was applied. The migrations of a new schema have one line together.

    Args:
        progress: receives the line.
        migration: the applied migration.
        before: the schema version before all migrations.
        after: the schema version after them.
    """
    if before:
        progress(f"migration: {migration.name} applied")
    elif migration.version == after:
        progress(f"migration: new schema, version {after}")


def report_repaired(progress: Progress, behind: Sequence[str]) -> None:
    """Report that sequences were moved past the ids that are in use."""
    progress(f"migration: {' and '.join(behind)} repaired: behind the tables, as after a restore of rows only")


def log_progress(line: str) -> None:
    """Write a line of progress to the log."""
    logger.info("%s", line)


def load_migrations(package: str) -> list[Migration]:
    """Return the migrations of a provider in order: the files of its folder ``migrations``, or else of ``schema``."""
    folder = files(package) / "migrations"
    if not folder.is_dir():
        return [
            Migration(1, FIRST, "\n".join([*_texts(files(package) / "schema").values(), *_schemas_of_guests(package)]))
        ]
    texts = _texts(folder)
    numbers = [int(match["number"]) for name in texts if (match := _FILE.fullmatch(name))]
    assert numbers == list(range(1, len(texts) + 1)), f"gap in the migrations of {package}"
    return [Migration(number, name, text) for number, (name, text) in enumerate(texts.items(), 1)]


def _schemas_of_guests(package: str) -> list[LiteralString]:
    """Return the schema of each guest that has a part in this provider, in the order of the guests."""
    engine = package.rpartition(".")[2]
    stores = [folder / "store" for folder in folders(f"store.{engine}")]
    return [text for store in stores for text in _schema_of_guest(store, f"{engine}_schema")]


def _schema_of_guest(store: Traversable, name: str) -> list[LiteralString]:
    """Return the files of the folder of this name, or else the file."""
    folder = store / name
    return [*_texts(folder).values()] if folder.is_dir() else [(store / f"{name}.sql").read_text(encoding="utf-8")]


def _texts(folder: Traversable) -> dict[str, LiteralString]:
    """Return the text of each SQL file, by its name without the ending, in the order of the names."""
    found = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    return {name.removesuffix(".sql"): (folder / name).read_text(encoding="utf-8") for name in found}


def made_before_release(place: str) -> SchemaMismatch:
    """Return the error for a database with the migrations of a version before 0.1.0; the database stays unchanged."""
    return SchemaMismatch(
        f"{place} was made by an unreleased version of affinity, whose migrations are gone: begin a new schema"
    )


def check_usable(found: SchemaVersion, migrations: Sequence[Migration], place: str) -> None:
    """Refuse a schema that this code may not use; ``place`` begins the message.

    Raises:
        SchemaMismatch: the schema does not exist, is older than this code needs, or is too new for it.
    """
    refuse_too_new(found, migrations, place)
    if found.version < len(migrations):
        state = f"is at version {found.version}" if found.version else "was never migrated"
        raise SchemaMismatch(f"{place} {state}, this code needs version {len(migrations)}: {HOW_TO_MIGRATE}")


def refuse_too_new(found: SchemaVersion, migrations: Sequence[Migration], place: str) -> None:
    """Refuse a schema that is newer than this code, unless the schema admits this code.

    Raises:
        SchemaMismatch: the schema does not admit it.
    """
    if found.oldest_code > len(migrations):
        needed = f"affinity {found.release} or later" if found.release else "a later release of affinity"
        raise SchemaMismatch(
            f"{place} is at version {found.version} and can be used by code that knows version {found.oldest_code}; "
            f"this is affinity {VERSION}, which knows version {len(migrations)}: use {needed}"
        )
