"""The code version of a worker: what tells one release of an application from another."""

from __future__ import annotations

import inspect
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from affinity.orchestration import App


def code_version(app: App) -> str:
    """A digest of affinity's version, of the names that the app registers, and of the files that hold its
    orchestrations. A change in another file does not show: ``RuntimeOptions.code_version`` is for that.
    """
    digest = sha256(version("affinity").encode())
    for key in sorted([*app.orchestrations, *app.activities]):
        digest.update(key.encode() + b"\0")
    functions = [definition.function for definition in app.orchestrations.values()]
    for path in sorted({path for function in functions if (path := _file_of(function)) is not None}):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _file_of(function: object) -> Path | None:
    """The file of a function's source; None when it has none (typed in, or compiled)."""
    try:
        path = Path(inspect.getsourcefile(inspect.unwrap(function)) or "")  # type: ignore[arg-type]
    except TypeError:  # an object that can be called
        return None
    return path if path.is_file() else None
