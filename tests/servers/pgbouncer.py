"""A real PgBouncer before a database."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.servers.base import free_port, wait_until_ready

PROGRAM: Final = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

CONFIGURATION: Final = """
[databases]
{dbname} = {server} {connect_query}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
admin_users = {admin}
pool_mode = {mode}
ignore_startup_parameters = {ignored}
default_pool_size = 90
{user}
{more}
"""

REFUSES: Final = ""
IGNORES: Final = "options"


HOSTILE: Final = (
    "SET search_path = public",
    "SET plan_cache_mode = force_custom_plan",
    "SET default_transaction_read_only = on",
    "SET default_transaction_isolation = serializable",
    "SET session_replication_role = replica",
    "SET bytea_output = escape",
    "SET row_security = off",
)
"""What a client that shares the sessions may leave behind."""


_GUARD: Final = 'read -r _; kill -KILL "$1"'
"""As that of `tests.servers.programs`."""


class PgBouncer:
    """One before the database of ``url``, in a pool mode. One ``with`` statement, in which it may be killed and started
    again. ``query`` is run on each of its own connections. ``more`` are settings.
    """

    def __init__(
        self, directory: Path, url: str, *, mode: str, ignored: str = REFUSES, query: str = "", **more: int
    ) -> None:
        server = conninfo_to_dict(url)
        port = free_port()
        self.url = f"postgresql://{server['user']}@127.0.0.1:{port}/{server['dbname']}"
        self.name = str(server["dbname"])
        """Of the database."""
        self._console = f"postgresql://{server['user']}@127.0.0.1:{port}/pgbouncer"
        self._log = directory / "pgbouncer.log"
        self._configuration = directory / "pgbouncer.ini"
        self._configuration.write_text(
            CONFIGURATION.format(
                dbname=server["dbname"],
                admin=server["user"],
                server=" ".join(
                    f"{key}={server[key]}" for key in ("host", "port", "user", "password") if key in server
                ),
                connect_query=f"connect_query='{query}'" if query else "",
                port=port,
                mode=mode,
                ignored=ignored,
                more="\n".join(f"{name} = {value}" for name, value in more.items()),
                user="user = nobody" if os.geteuid() == 0 else "",  # it does not run as root
            )
        )

    def start(self) -> None:
        """Start it, on the same port; returns when it accepts connections."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen([str(PROGRAM), self._configuration], stdout=output, stderr=output)
        guard = ["/bin/sh", "-c", _GUARD, "guard", str(self._process.pid)]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True)
        wait_until_ready(self.url, lambda: self._process.poll() is None, lambda: self._log.read_text(errors="replace"))

    def kill(self) -> None:
        """End it by SIGKILL, and with it its connections."""
        self._guard.kill()  # first: the number may be another process's then
        self._guard.communicate()
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Let it stand still, until `resume`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def command(self, text: str) -> None:
        """Give a command to its console."""
        with psycopg.connect(self._console, autocommit=True) as console:
            console.execute(text.encode())

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@contextmanager
def pooler(
    directory: Path, url: str, *, mode: str, ignored: str = REFUSES, query: str = "", **more: int
) -> Iterator[str]:
    """The URL of a `PgBouncer`."""
    with PgBouncer(directory, url, mode=mode, ignored=ignored, query=query, **more) as bouncer:
        yield bouncer.url
