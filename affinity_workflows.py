"""The distribution `affinity-workflows`: its version, the entry of its command, and a check of the environment.

Outside of the package `affinity`, because the distribution `affinity` on PyPI, another project, has a package of that
name. Installed beside each other, the files of the later one replace files of the earlier one.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from itertools import pairwise
from types import FrameType
from typing import Final

VERSION: Final = "0.1.0"

SIGNALLED: Final = 128
"""Plus the number of a signal: the exit code of a process that it ended, as shells report it."""


def check_installation() -> None:
    """Refuse an environment that has the distribution `affinity`, too.

    Raises:
        ImportError: it has; the message names the remedy.
    """
    if not any(map(_has_metadata, sys.path)):
        return
    from importlib.metadata import PackageNotFoundError, distribution  # takes longer than the rest of an import

    try:
        other, _ = distribution("affinity"), distribution("affinity-workflows")
    except PackageNotFoundError:
        return
    if any(script.value == "affinity.cli:main" for script in other.entry_points):
        return  # an editable install of this project under its name before 0.1.0
    raise ImportError(
        f"the distribution affinity {other.version} is installed beside affinity-workflows, and both have a package"
        " affinity: run `pip uninstall affinity`, then `pip install --force-reinstall --no-deps affinity-workflows`"
    )


def _has_metadata(directory: str) -> bool:
    """Whether metadata of a distribution `affinity` is in a directory of the import path."""
    with suppress(OSError):
        return any(name.lower().startswith("affinity-") for name in os.listdir(directory or "."))
    return False


def heed_signals() -> None:
    """Let SIGTERM and SIGHUP end this process, until a command handles them.

    They would anyway, but for the first process of a container, which ignores a signal without a handler: one that
    comes during the imports would be lost.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under `nohup` SIGHUP is ignored
            signal.signal(number, _end_by)


def _end_by(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(SIGNALLED + number)  # it is the first process


def _is_command() -> bool:
    """Whether this is an import by ``python -m affinity``, before any code of the package."""
    return sys.argv[:1] == ["-m"] and ("-m", "affinity") in pairwise(sys.orig_argv)


def main() -> None:
    """The command ``affinity``."""
    heed_signals()
    try:
        check_installation()
        from affinity.cli import main as command  # after the check: the package may be the other project's
    except ImportError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit(SIGNALLED + signal.SIGINT)
    command()


if _is_command():
    heed_signals()
