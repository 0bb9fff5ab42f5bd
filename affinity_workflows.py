"""The distribution `affinity-workflows`: its version, the entry of its command, and a check of the environment.

Outside of the package `affinity`, because the distribution `affinity` on PyPI, another project, has a package of that
name. Installed beside each other, the files of the later one replace files of the earlier one.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Final

VERSION: Final = "0.1.0"


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


def main() -> None:
    """The command ``affinity``."""
    try:
        check_installation()
    except ImportError as error:
        sys.exit(f"Error: {error}")
    from affinity.cli import main as command  # after the check: the package may be the other project's

    command()
