"""Pods of a StatefulSet as processes: started and ended as the kubelet does, as far as a process can tell."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tests.deploy.kustomize import DEPLOY, ROOT, Manifest, Manifests

WORKLOAD: Final = ("StatefulSet", "affinity-workers")
CONFIGURATION: Final = ("ConfigMap", "affinity-workers")


def pod_template(manifests: Manifests) -> Manifest:
    """The `spec` of the pods."""
    template: Manifest = manifests[WORKLOAD]["spec"]["template"]["spec"]
    return template


def environment(manifests: Manifests, pod: str, secrets: Mapping[tuple[str, str], str]) -> dict[str, str]:
    """The variables of the container of a pod: of its ConfigMaps, its own fields, and Secrets by name and key."""
    (container,) = pod_template(manifests)["containers"]
    found: dict[str, str] = {}
    for source in container["envFrom"]:
        found |= manifests["ConfigMap", source["configMapRef"]["name"]]["data"]
    for variable in container.get("env", []):
        found[variable["name"]] = _value(variable, pod, secrets)
    return found


def _value(variable: Manifest, pod: str, secrets: Mapping[tuple[str, str], str]) -> str:
    match variable:
        case {"value": str(value)}:
            return value
        case {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}:
            return pod
        case {"valueFrom": {"secretKeyRef": {"name": name, "key": key}}}:
            return secrets[name, key]
        case _:
            raise AssertionError(f"what is {variable}?")


def entrypoint() -> Sequence[str]:
    """Of the image."""
    (found,) = re.findall(r'^ENTRYPOINT \["(.*)"\]$', (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    words: Sequence[str] = found.split('", "')
    assert words == ["affinity"]
    return [sys.executable, "-m", *words]


class Pod:
    """One pod: its container's process."""

    def __init__(
        self,
        manifests: Manifests,
        name: str,
        log: Path,
        *,
        app: str,  # instead of the one of the image
        secrets: Mapping[tuple[str, str], str],
        **different: str,  # variables that must differ from the manifest on one machine: ports, paths
    ) -> None:
        template = pod_template(manifests)
        (self._container,) = template["containers"]
        self.name = name
        self.grace = float(template["terminationGracePeriodSeconds"])
        command, _ = self._container["args"]
        variables = environment(manifests, name, secrets)
        self._environment = variables | different | {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}"}
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*entrypoint(), command, app], env=self._environment, stdout=output, stderr=output, cwd=ROOT
            )

    def log(self) -> str:
        """What it has written."""
        return self._log.read_text()

    def begin_stop(self) -> float:
        """The hook, then SIGTERM; returns when the grace period ends (monotonic seconds)."""
        deadline = time.monotonic() + self.grace
        hook: Any = self._container.get("lifecycle", {}).get("preStop")
        if hook is not None:
            program, verb, process, *options = hook["exec"]["command"]
            assert (program, verb, process) == ("affinity", "stop", "1"), "the first process of the container"
            command = [*entrypoint(), verb, str(self._process.pid), *options]
            with self._log.open("ab") as output:
                subprocess.run(
                    command, env=self._environment, timeout=self.grace, stdout=output, stderr=output, check=True
                )
            assert self._process.poll() is not None, "the hook has returned before the end"
        self._process.send_signal(signal.SIGTERM)
        return deadline

    def end_stop(self, deadline: float) -> int:
        """Wait for the end of the grace period at most, then SIGKILL; the exit code."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(max(0.0, deadline - time.monotonic()))
        self.kill()
        return self._process.wait()

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
