"""Bytecode that all processes of a test run share, also with ``PYTHONDONTWRITEBYTECODE``.

Import it before the modules that are to be shared. To rewrite the assertions of all test modules takes eight seconds of
a core: `share` does it once, on two cores, and not in each of the processes that xdist starts.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parent.parent


def share() -> None:
    """Have every test module compiled. One that cannot be imported is reported when it is collected."""
    modules = [".".join(path.relative_to(TESTS.parent).with_suffix("").parts) for path in TESTS.rglob("test_*.py")]
    half = multiprocessing.get_context("fork").Process(target=_import, args=(modules[::2],))
    half.start()
    _import(modules[1::2])
    half.join()


def _import(modules: Sequence[str]) -> None:
    for module in modules:
        with suppress(Exception, pytest.skip.Exception):
            import_module(module)


if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = tempfile.mkdtemp(prefix="affinity-compiled-")
    sys.dont_write_bytecode = False
    atexit.register(shutil.rmtree, sys.pycache_prefix, ignore_errors=True)
