"""Servers in containers, where a Docker engine answers."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from typing import Any, Final

from tests.servers.base import Offer, PostgresServer, StopMode, free_port, settings, stop_signal, wait_until_ready

USUAL: Final = (15, 18)
"""Major versions: the oldest that is supported, and the newest."""


class ContainerServer(PostgresServer):
    """A server in a container, on a fixed port of this machine, so that it is the same after a restart."""

    def __init__(self, image: str, major: int, *, fsync: bool) -> None:
        from testcontainers.core.container import DockerContainer

        self.major = major
        self._port = free_port()
        arguments = [f"-c {name}={value!r}" for name, value in settings(fsync=fsync).items()]
        self._container = (
            DockerContainer(image)
            .with_env("POSTGRES_HOST_AUTH_METHOD", "trust")
            .with_bind_ports(5432, self._port)
            .with_command(" ".join(["postgres", *arguments]))
        )
        self._container.start()
        try:
            wait_until_ready(self.url(), self._alive)
        except BaseException:
            self.close()
            raise

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@{self._container.get_container_host_ip()}:{self._port}/{database}"

    def start(self) -> None:
        self._wrapped().start()
        wait_until_ready(self.url(), self._alive)

    def stop(self, mode: StopMode = "fast") -> None:
        self.disconnect()
        container = self._wrapped()
        container.kill(signal=stop_signal(mode).name)
        container.wait()

    def close(self) -> None:
        self.disconnect()
        self._container.stop()

    def _alive(self) -> bool:
        container = self._wrapped()
        container.reload()
        return bool(container.status in {"created", "running"})

    def _wrapped(self) -> Any:
        return self._container.get_wrapped_container()


def containers(majors: Iterable[int]) -> Iterator[Offer]:
    """One for each image of these versions that the engine has, or can fetch."""
    if not _docker_answers():
        return
    for major in majors:
        image = f"postgres:{major}"
        if _image_is_there(image):
            origin = f"container {image}"
            yield Offer(major, origin, partial(ContainerServer, image, major))


def _docker_answers() -> bool:
    """Whether an engine is behind the local socket; asked here since the client library leaks its own if none is."""
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not address.startswith("unix://"):
        return False
    with socket.socket(socket.AF_UNIX) as line, suppress(OSError):
        line.settimeout(2)
        line.connect(address.removeprefix("unix://"))
        line.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
        return b" 200 " in line.recv(64)
    return False


def _image_is_there(image: str) -> bool:
    """Whether the engine has the image, or can fetch it."""
    import docker  # type: ignore[import-untyped]  # it comes without types

    with closing(docker.from_env()) as client, suppress(docker.errors.DockerException):
        try:
            client.images.get(image)
        except docker.errors.ImageNotFound:
            client.images.pull(image)
        return True
    return False
