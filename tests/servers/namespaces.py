"""A real network between a test and a PostgreSQL server: two network namespaces of Linux with a cable between them."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from tests.servers.programs import LocalServer

T = TypeVar("T")

SERVER: Final = "10.233.0.1"
_NEW_NETWORK: Final = 0x40000000
"""CLONE_NEWNET of setns(2)."""


class NoNamespaces(RuntimeError):
    """Network namespaces cannot be made here; the message says why."""


class RemoteServer(LocalServer):
    """A server that the other end of the cable reaches. To be started in the server's namespace."""

    host = SERVER

    def _fill(self) -> None:
        super()._fill()
        with (self._data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all samenet trust\n")


class Cable:
    """The network between `server` and `clients`, which are namespaces."""

    def __init__(self, name: str) -> None:
        self.server = f"{name}-server"
        self.clients = f"{name}-clients"
        self._last = 2  # part of the address that new connections of clients have

    def lay(self) -> None:
        for each in (self.server, self.clients):
            _ip("netns", "add", each)
        _ip("link", "add", "eth0", "netns", self.server, "type", "veth", "peer", "name", "eth0", "netns", self.clients)
        self._in(self.server, "addr", "add", f"{SERVER}/24", "dev", "eth0")
        self._in(self.clients, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for each in (self.server, self.clients):
            for device in ("lo", "eth0"):
                self._in(each, "link", "set", device, "up")

    def remove(self) -> None:
        for each in (self.server, self.clients):
            subprocess.run(["ip", "netns", "delete", each], capture_output=True, check=False)

    @property
    def address(self) -> str:
        """That new connections of clients have."""
        return f"10.233.0.{self._last}"

    def lose(self) -> None:
        """No packet of the connections of now arrives any more, in either direction, and neither end hears of it.
        Later connections work: they have another address.
        """
        lost = self.address
        self._last += 1
        self._in(self.clients, "addr", "add", f"{self.address}/24", "dev", "eth0")
        self._in(self.clients, "route", "replace", "10.233.0.0/24", "dev", "eth0", "src", self.address)
        self._in(self.clients, "rule", "add", "from", lost, "blackhole")
        self._in(self.server, "rule", "add", "to", lost, "blackhole")

    def _in(self, namespace: str, *words: str) -> None:
        _ip("-n", namespace, *words)


def inside(namespace: str, work: Callable[[], T]) -> T:
    """Run it on a thread in that namespace; threads and processes that it starts are there too."""

    def run() -> T:
        with Path("/run/netns", namespace).open() as network:
            if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "setns")
        return work()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


@contextmanager
def cable() -> Iterator[Cable]:
    """A network of its own.

    Raises:
        NoNamespaces: that is not possible here.
    """
    if shutil.which("ip") is None:
        raise NoNamespaces("the program `ip` is missing: install iproute2")
    between = Cable(f"affinity-{os.getpid()}")
    try:
        try:
            between.lay()
        except subprocess.CalledProcessError as error:
            raise NoNamespaces(f"network namespaces are not permitted: {error.stderr.strip()}") from None
        yield between
    finally:
        between.remove()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, text=True, check=True)
