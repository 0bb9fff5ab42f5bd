"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from bench.systems.base import ROOT


def describe_machine() -> dict[str, Any]:
    """The machine, as far as it decides the figures."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "system": platform.platform(),
        "python": platform.python_version(),
        "commit": _commit(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def load() -> float:
    """Processes that want a core, averaged over the last minute: what else goes on makes figures worse."""
    return os.getloadavg()[0]


def _processor() -> str:
    names = (line for line in _read("/proc/cpuinfo").splitlines() if line.startswith("model name"))
    return next(names, f"x {platform.processor() or platform.machine()}").split(maxsplit=3)[-1].removeprefix(": ")


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip() or None
