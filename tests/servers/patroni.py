"""A highly available PostgreSQL, as people run it: two servers behind Patroni, three etcd, and HAProxy before them.

All are programs of Debian's packages; ``$AFFINITY_TESTS_PATRONI_PROGRAM`` is the path of another Patroni. They listen
on 127.0.0.1 with ports of their own, run as an unprivileged user, and end with this process.
"""

from __future__ import annotations

import atexit
import http.client
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal

import psycopg
import pytest

from tests.servers.base import free_port
from tests.servers.programs import memory, program_directories, unprivileged
from tests.servers.proxy import Proxy

Replication = Literal["synchronous", "strict", "asynchronous"]
"""``strict``: synchronous also where no standby is there, when nothing is committed (``synchronous_mode_strict``)."""

PROGRAMS: Final = ("patroni", "etcd", "haproxy")

KEPT: Final = "AFFINITY_TESTS_PATRONI_LOGS"
"""The variable with a folder for the logs of a cluster that has ended."""

OTHER: Final = "AFFINITY_TESTS_PATRONI_PROGRAM"
"""The variable with the path of a Patroni, which an unprivileged user can run."""

TTL: Final = 20.0
"""Seconds for which a primary may lead without renewing its lock: the least that Patroni documents."""

RETRY_TIMEOUT: Final = 5
LOOP_WAIT: Final = 1

PATIENCE: Final = 90.0
"""Seconds after which something that a test waits for is broken."""

MEMBERS: Final = ("one", "two")

_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/bin"

_GUARD: Final = """
read -r _
for file in "$1"/*.pid; do kill -KILL "$(cat "$file")"; done
for file in "$1"/*/postmaster.pid; do
    pid="$(head -n 1 "$file")" && kill -CONT "$pid" && kill -QUIT "$pid"
    for _ in $(seq 100); do [ -e "$file" ] || break; sleep 0.1; done
done
rm -rf "$1"
"""
"""As that of `tests.servers.programs`, for all processes of a cluster."""


def _program(name: str) -> str:
    """Its path; empty: it is not there."""
    other = os.environ.get(OTHER) if name == "patroni" else None
    return other or shutil.which(name, path=_PATH) or ""


MISSING: Final = [name for name in PROGRAMS if not _program(name)]

needs_patroni: Final = pytest.mark.skipif(
    bool(MISSING) and os.environ.get("AFFINITY_TESTS_PATRONI") != "required",
    reason=f"this machine has not the programs {', '.join(PROGRAMS)}",
)


class Unit:
    """A program with its files: one process, which may be killed, paused and started again."""

    def __init__(self, cluster: Cluster, name: str, command: list[str | Path]) -> None:
        self.name = name
        self._cluster = cluster
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self._cluster.home / f"{self.name}.log"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        assert not self.is_running
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, **self._cluster.confinement())
        (self._cluster.home / f"{self.name}.pid").write_text(str(self._process.pid))

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Member(Unit):
    """A Patroni and its PostgreSQL."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.port, self.rest_port = free_port(), free_port()
        self.data = cluster.home / name
        self.proxy = Proxy(f"postgresql://postgres@127.0.0.1:{self.port}/postgres")
        """Through which the other one follows it."""
        path = cluster.home / f"{name}.yml"
        path.write_text(json.dumps(self._configuration(cluster, name)))
        super().__init__(cluster, f"patroni-{name}", [_program("patroni"), path])
        self.member = name

    def _configuration(self, cluster: Cluster, name: str) -> dict[str, Any]:
        rest = f"127.0.0.1:{self.rest_port}"
        parameters = {
            "max_connections": 200,
            "unix_socket_directories": str(cluster.home),
            "fsync": "off",
            "wal_keep_size": "256MB",
            "log_line_prefix": "%m [%p] %a ",
        }
        shared = {
            "ttl": int(TTL),
            "loop_wait": LOOP_WAIT,
            "retry_timeout": RETRY_TIMEOUT,
            "maximum_lag_on_failover": 64 << 20,
            "primary_start_timeout": 0,  # a primary that crashes is replaced, and not waited for
            "synchronous_mode": cluster.replication != "asynchronous",
            "synchronous_mode_strict": cluster.replication == "strict",
            "postgresql": {"use_pg_rewind": True, "use_slots": True, "parameters": parameters},
        }
        return {
            "scope": "affinity",
            "name": name,
            "restapi": {"listen": rest, "connect_address": rest},
            "etcd3": {"hosts": [f"127.0.0.1:{each}" for each in cluster.etcd_ports]},
            "bootstrap": {
                "dcs": shared,
                "initdb": [{"encoding": "UTF8"}, {"auth": "trust"}, "no-locale", "no-sync", "data-checksums"],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.port}",
                "connect_address": self.proxy.url.partition("@")[2].partition("/")[0],
                "data_dir": str(self.data),
                "bin_dir": str(cluster.programs),
                "pgpass": str(cluster.home / f"{name}.pgpass"),
                "authentication": {
                    "superuser": {"username": "postgres"},
                    "replication": {"username": "replicator"},
                    "rewind": {"username": "postgres"},
                },
                "pg_hba": ["local all all trust", "host all all all trust", "host replication all all trust"],
            },
        }

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def postmaster(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def kill_postgres(self) -> None:
        """SIGKILL to the postmaster and all its processes, as when memory is short."""
        for pid in self._postgres():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP to all, as of a virtual machine: the kernel goes on answering for its sockets."""
        self.send(signal.SIGSTOP)
        for pid in self._postgres():
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """PostgreSQL goes on, then a new Patroni: the old one, of release 3.0.2, may take back the lock that it had."""
        self.kill()
        for pid in self._postgres():
            os.kill(pid, signal.SIGCONT)
        time.sleep(0.5)
        self.start()

    def _postgres(self) -> list[int]:
        first = self.postmaster
        return [first, *_children(first)]

    def role(self) -> str:
        """As its Patroni says: primary, replica, or what it is doing; empty: it does not answer."""
        with suppress(OSError, http.client.HTTPException):
            found = _get(self.rest_port, "/patroni")
            role = {"master": "primary"}.get(found["role"], found["role"])  # of releases before the fourth
            return str(role if found["state"] == "running" else found["state"])
        return ""


class Cluster:
    """Two members, three etcd, and HAProxy."""

    def __init__(self, replication: Replication) -> None:
        self.replication = replication
        self.seen = ""
        """By the last look at whether it is whole, for a message."""
        self.owner = unprivileged()
        self.home = Path(tempfile.mkdtemp(prefix="affinity-patroni-", dir=memory()))
        self.home.chmod(0o755)
        if self.owner is not None:
            os.chown(self.home, self.owner.pw_uid, self.owner.pw_gid)
        self.programs = _programs_of_postgres()
        self._guard = _guard(self.home)
        atexit.register(self.close)
        self.etcd_ports = [free_port() for _ in range(3)]
        self.etcd = [Unit(self, f"etcd-{number}", command) for number, command in enumerate(self._etcd_commands())]
        self.members = {name: Member(self, name) for name in MEMBERS}
        self.haproxy_port = free_port()
        self.haproxy = Unit(self, "haproxy", [_program("haproxy"), "-db", "-f", self._haproxy_configuration()])

    def confinement(self) -> dict[str, Any]:
        """How its processes are started: not as root, and away from the terminal."""
        environment = {"PATH": _PATH, "HOME": str(self.home), "LANG": "C.UTF-8"}
        apart: dict[str, Any] = {"cwd": self.home, "start_new_session": True, "stdin": subprocess.DEVNULL}
        apart |= {"env": environment}
        if self.owner is None:
            return apart
        return apart | {"user": self.owner.pw_uid, "group": self.owner.pw_gid, "extra_groups": []}

    def _etcd_commands(self) -> Iterator[list[str | Path]]:
        peers = [free_port() for _ in self.etcd_ports]
        everyone = ",".join(f"etcd-{number}=http://127.0.0.1:{port}" for number, port in enumerate(peers))
        for number, (port, peer) in enumerate(zip(self.etcd_ports, peers, strict=True)):
            mine, ours = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
            options = {
                "name": f"etcd-{number}",
                "data-dir": str(self.home / f"etcd-{number}"),
                "listen-client-urls": mine,
                "advertise-client-urls": mine,
                "listen-peer-urls": ours,
                "initial-advertise-peer-urls": ours,
                "initial-cluster": everyone,
            }
            yield [_program("etcd"), *(f"--{name}={value}" for name, value in options.items())]

    def _haproxy_configuration(self) -> Path:
        """As Patroni's documentation shows it: the member whose Patroni says that it leads, and no connection stays to
        one that does not.
        """
        servers = "\n".join(
            f"    server {each.member} 127.0.0.1:{each.port} check port {each.rest_port}"
            for each in self.members.values()
        )
        path = self.home / "haproxy.cfg"
        path.write_text(
            "global\n    maxconn 500\n"
            "defaults\n    mode tcp\n    retries 2\n    timeout client 30m\n    timeout connect 4s\n"
            "    timeout server 30m\n    timeout check 2s\n"
            f"listen postgres\n    bind 127.0.0.1:{self.haproxy_port}\n    option httpchk OPTIONS /primary\n"
            "    http-check expect status 200\n"
            "    default-server inter 1s fall 3 rise 1 on-marked-down shutdown-sessions\n"
            f"{servers}\n"
        )
        return path

    def start(self) -> None:
        for unit in (*self.etcd, self.members["one"]):
            unit.start()
        self.until(lambda: self.members["one"].role() == "primary")
        self.members["two"].start()
        self.haproxy.start()
        self.until_whole()

    def close(self) -> None:
        """End all processes and remove their files. Idempotent."""
        atexit.unregister(self.close)
        if kept := os.environ.get(KEPT):
            for log in self.home.glob("*.log"):
                shutil.copy(log, kept)
        for unit in (*self.members.values(), self.haproxy, *self.etcd):
            unit.kill()
        for member in self.members.values():
            member.proxy.close()
        self._guard.communicate()

    # -- what it is

    def url(self, database: str) -> str:
        """Of both members; libpq finds the one that takes writes."""
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in self.members.values())
        return f"postgresql://postgres@{hosts}/{database}?target_session_attrs=read-write"

    def url_of_haproxy(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.haproxy_port}/{database}"

    def create_database(self, name: str, template: str = "template1") -> None:
        with psycopg.connect(self.primary.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")

    @property
    def primary(self) -> Member:
        """The only member that says that it leads."""
        (found,) = [each for each in self.members.values() if each.role() == "primary"]
        return found

    def other(self, member: Member) -> Member:
        (found,) = [each for each in self.members.values() if each is not member]
        return found

    @property
    def etcd_leader(self) -> Unit:
        for unit, port in zip(self.etcd, self.etcd_ports, strict=True):
            with suppress(OSError, http.client.HTTPException):
                found = _post(port, "/v3/maintenance/status", {})
                if found["leader"] == found["header"]["member_id"]:
                    return unit
        raise AssertionError("no etcd leads")

    def is_whole(self) -> bool:
        """Whether one member leads and the other one follows it, as a synchronous standby if there is to be one."""
        self.seen = ""
        if sorted(each.role() for each in self.members.values()) != ["primary", "replica"]:
            return False
        primary = self.primary
        with (
            suppress(OSError, http.client.HTTPException, psycopg.Error),
            psycopg.connect(primary.url, autocommit=True, connect_timeout=2) as one,
        ):
            following = one.execute("SELECT state, sync_state FROM pg_stat_replication").fetchall()
            members = _get(primary.rest_port, "/cluster")["members"]  # of etcd, which may know it later
            self.seen = f"{following} {members}"
            state, role = ("async", "replica") if self.replication == "asynchronous" else ("sync", "sync_standby")
            wanted = {primary.member: "leader", self.other(primary).member: role}  # a sync_standby may be promoted
            roles = {each["name"]: each["role"] for each in members}
            return following == [("streaming", state)] and roles == wanted
        return False

    def until_whole(self) -> None:
        self.until(self.is_whole)

    def until(self, is_so: Callable[[], bool]) -> None:
        """Return when it is so; if it never is, with the ends of the logs."""
        end = time.monotonic() + PATIENCE
        while not is_so():
            assert time.monotonic() < end, f"never became so: {self.seen}\n{self.logs()}"
            time.sleep(0.1)

    def logs(self) -> str:
        """The end of each log."""
        return "\n".join(
            f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-30:])
            for path in sorted(self.home.glob("*.log"))
        )

    # -- what happens to it

    def switch_over(self) -> None:
        """As `patronictl switchover` does, again while Patroni finds the standby unfit; returns when the other one
        leads.
        """
        leader = self.primary
        wanted = {"leader": leader.member, "candidate": self.other(leader).member}

        def begin() -> bool:
            self.seen = str(_post(leader.rest_port, "/switchover", wanted))
            return "uccessfully" in self.seen

        self.until(begin)
        self.until_other_leads(leader)

    def until_other_leads(self, member: Member) -> None:
        self.until(lambda: self.other(member).role() == "primary")

    def until_none_leads(self) -> None:
        self.until(lambda: "primary" not in {each.role() for each in self.members.values()})


@contextmanager
def open_cluster(replication: Replication) -> Iterator[Cluster]:
    """A cluster that is whole."""
    assert not MISSING, f"needed here, of Debian's packages patroni, etcd-server and haproxy: {MISSING}"
    cluster = Cluster(replication)
    try:
        cluster.start()
        yield cluster
    except BaseException as error:
        error.add_note(cluster.logs())
        raise
    finally:
        cluster.close()


def _programs_of_postgres() -> Path:
    """Of the lowest version, which the Patroni of a distribution knows."""
    found = [(major, path) for major, path in program_directories() if (path / "pg_rewind").exists()]
    return min(found)[1]


def _children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


def _get(port: int, path: str) -> Any:
    return _request(port, "GET", path)


def _post(port: int, path: str, data: dict[str, Any]) -> Any:
    return _request(port, "POST", path, json.dumps(data))


def _request(port: int, verb: str, path: str, body: str | None = None) -> Any:
    """The JSON, also of a refusal, or the text."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60.0 if body else 2.0)) as connection:
        connection.request(verb, path, body, {"Content-Type": "application/json"})
        found = connection.getresponse().read().decode()
    return json.loads(found) if found.startswith("{") else found


def _guard(home: Path) -> subprocess.Popen[bytes]:
    """A process that ends the cluster when this one is gone, however that ended."""
    nowhere = subprocess.DEVNULL
    command = ["/bin/sh", "-c", _GUARD, "guard", str(home)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True)
