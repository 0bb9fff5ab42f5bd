"""Checks of a file and its disk."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from affinity.errors import ProviderError
from affinity.limits import LOW_DISK_BYTES
from affinity.provider.checks import CheckResult, check_schema, error, ok, warning
from affinity.provider.schema import HOW_TO_MIGRATE, SchemaReport
from affinity.provider.sqlite.driver.database import OLDEST_SQLITE
from affinity.provider.sqlite.driver.errors import FAILURES, translate
from affinity.provider.sqlite.migration import inspect_open

_NETWORK: Final = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "fuse.ceph",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "smb3",
        "smbfs",
    ]
)
"""Types of file systems that other machines write to as well."""

_HEADER: Final = 20
_WAL: Final = b"\2\2"
"""The last two bytes of this much of a file: who may write and who may read it."""

_MOUNTS: Final = Path("/proc/self/mountinfo")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class _Facts:
    path: Path
    exists: bool
    file_system: str | None  # its type; None: not known
    is_writable: bool
    free_bytes: int
    is_wal: bool
    encoding: str  # "": there is no file yet, or it cannot be read
    schema: SchemaReport | None
    failure: str  # why the file cannot be read


def check_file(path: Path) -> list[CheckResult]:
    """Look at a file and its disk, without a change of either."""
    facts = _look(path)
    return [result for check in CHECKS if (result := check(facts)) is not None]


def _check_version(_: _Facts) -> CheckResult:
    found = f"SQLite {sqlite3.sqlite_version}"
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        needed = ".".join(map(str, OLDEST_SQLITE))
        return error("version", found, f"use a Python whose SQLite is {needed} or later")
    return ok("version", found)


def _check_file(facts: _Facts) -> CheckResult:
    directory = facts.path.parent
    if facts.failure:
        return error("file", facts.failure, "name another file, or restore this one from a backup")
    if facts.exists:
        return ok("file", str(facts.path))
    if directory.is_dir():
        return warning("file", f"{facts.path} does not exist", HOW_TO_MIGRATE)
    return error("file", f"the directory {directory} does not exist", "create it")


def _check_schema(facts: _Facts) -> CheckResult | None:
    return None if facts.schema is None else check_schema(facts.schema, may_migrate=facts.is_writable)


def _check_journal(facts: _Facts) -> CheckResult | None:
    if facts.schema is None or not facts.schema.version:
        return None
    if facts.is_wal:
        return ok("journal", "WAL; commits wait for the disk")
    return warning("journal", "the journal mode is not WAL: reads and writes block each other", HOW_TO_MIGRATE)


def _check_encoding(facts: _Facts) -> CheckResult | None:
    return ok("encoding", facts.encoding) if facts.encoding else None


def _check_disk(facts: _Facts) -> CheckResult:
    if facts.is_writable:
        return ok("disk", "writable")
    return error(
        "disk",
        "the file or its directory cannot be written",
        "give the user of this process the right to write both, on a disk that is not mounted read-only",
    )


def _check_file_system(facts: _Facts) -> CheckResult:
    kind = facts.file_system
    if kind in _NETWORK:
        return warning(
            "filesystem",
            f"{kind} is a network file system: locks do not hold between machines, and the file can be damaged",
            "use a local disk, or PostgreSQL",
        )
    return ok("filesystem", kind or "not known")


def _check_space(facts: _Facts) -> CheckResult:
    found = f"{facts.free_bytes / 2**20:,.0f} MiB free"
    if facts.free_bytes < LOW_DISK_BYTES:
        return warning("space", f"the disk is nearly full: {found}", "free some, or remove old instances")
    return ok("space", found)


CHECKS: Final[tuple[Callable[[_Facts], CheckResult | None], ...]] = (
    _check_version,
    _check_file,
    _check_schema,
    _check_journal,
    _check_encoding,
    _check_disk,
    _check_file_system,
    _check_space,
)
"""All checks, in the order in which they are shown."""


def _look(path: Path) -> _Facts:
    path = path.resolve()
    exists = path.exists()
    nearest = next(parent for parent in (path, *path.parents) if parent.exists())
    is_writable = all(os.access(each, os.W_OK) for each in ((path, path.parent) if exists else (nearest,)))
    space = os.statvfs(nearest)
    is_wal, encoding, schema, failure = False, "", None, ""
    if exists:
        try:
            with closing(_open(path, is_writable=is_writable)) as connection:
                is_wal = _is_wal(connection, path, is_writable=is_writable)
                (encoding,) = connection.execute("PRAGMA encoding").fetchone()
                schema = inspect_open(connection, path)
        except FAILURES as caught:
            failure = str(translate(caught))
        except (ProviderError, OSError) as caught:
            failure = str(caught)
    return _Facts(
        path=path,
        exists=exists,
        file_system=file_system(nearest),
        is_writable=is_writable,
        free_bytes=space.f_bavail * space.f_frsize,
        is_wal=is_wal,
        encoding=encoding,
        schema=schema,
        failure=failure,
    )


def _open(path: Path, *, is_writable: bool) -> sqlite3.Connection:
    # In WAL mode a reader writes the file of the locks, and a connection for reading leaves it behind. Where it cannot,
    # and there is none, nothing else writes to the database either.
    how = "mode=rw" if is_writable else "mode=ro"
    if _never_changes(path, is_writable=is_writable):
        how += "&immutable=1"
    return sqlite3.connect(f"{path.as_uri()}?{how}", uri=True, timeout=1.0, isolation_level=None)


def _never_changes(path: Path, *, is_writable: bool) -> bool:
    return not is_writable and not path.with_name(f"{path.name}-wal").exists()


def _is_wal(connection: sqlite3.Connection, path: Path, *, is_writable: bool) -> bool:
    if not _never_changes(path, is_writable=is_writable):
        # The file itself is not opened: its close would take the locks away that SQLite holds for this process.
        return bool(connection.execute("PRAGMA journal_mode").fetchone() == ("wal",))
    with path.open("rb") as file:  # a connection to a file that does not change has no journal, and no locks
        return file.read(_HEADER)[-2:] == _WAL


def file_system(path: Path) -> str | None:
    """Return the type of the file system of a path, as Linux names it."""
    found = {place: kind for place, kind in _mounts() if path.is_relative_to(place)}
    return found[max(found, key=lambda place: len(place.parts))] if found else None


def _mounts() -> Iterator[tuple[Path, str]]:
    """Yield the mounted file systems; of two at one place the second covers the first."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        about, _, rest = line.partition(" - ")
        place = _ESCAPED.sub(lambda code: chr(int(code[1], 8)), about.split(" ")[4])
        yield Path(place), rest.split(" ")[0]
