"""A real PgBouncer before a database."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

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
pool_mode = {mode}
ignore_startup_parameters = {ignored}
default_pool_size = 90
{user}
{more}
"""

REFUSES: Final = ""
IGNORES: Final = "options"


@contextmanager
def pooler(
    directory: Path, url: str, *, mode: str, ignored: str = REFUSES, query: str = "", **more: int
) -> Iterator[str]:
    """A PgBouncer before the database of ``url``, in a pool mode; ``query`` is run on each of its own connections.
    ``more`` are settings.
    """
    server = conninfo_to_dict(url)
    port = free_port()
    configuration = directory / "pgbouncer.ini"
    configuration.write_text(
        CONFIGURATION.format(
            dbname=server["dbname"],
            server=" ".join(f"{key}={server[key]}" for key in ("host", "port", "user", "password") if key in server),
            connect_query=f"connect_query='{query}'" if query else "",
            port=port,
            mode=mode,
            ignored=ignored,
            more="\n".join(f"{name} = {value}" for name, value in more.items()),
            user="user = nobody" if os.geteuid() == 0 else "",  # it does not run as root
        )
    )
    log = directory / "pgbouncer.log"
    with log.open("wb") as output:
        process = subprocess.Popen([str(PROGRAM), configuration], stdout=output, stderr=output)
    try:
        pooled = f"postgresql://{server['user']}@127.0.0.1:{port}/{server['dbname']}"
        wait_until_ready(pooled, lambda: process.poll() is None, lambda: log.read_text(errors="replace"))
        yield pooled
    finally:
        process.kill()
        process.wait()
