"""Files that commands write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import click

PRIVATE: Final = 0o600


@contextmanager
def written(output: str, *, private: bool = False) -> Iterator[IO[str]]:
    """The file to write, renamed when it is complete; or stdout, for "-". A ``private`` one is its owner's alone.

    Raises:
        click.UsageError: it cannot be written.
    """
    if output == "-":
        with click.open_file("-", "w", encoding="utf-8") as stdout:
            yield stdout
        return
    path, partial = Path(output), Path(f"{output}.part")
    if path.exists() and not path.is_file():
        partial = path  # a device or a pipe; a directory is refused below
    try:
        opener = _open_private if private else None
        with open(partial, "w", encoding="utf-8", newline="\n", opener=opener) as file:  # `Path.open` takes no opener
            yield file
        os.replace(partial, path)
    except OSError as error:
        raise click.UsageError(f"cannot write {output!r}: {error.strerror}") from error
    finally:
        if partial != path:
            partial.unlink(missing_ok=True)


def _open_private(path: str, flags: int) -> int:
    """Open a file that has this mode from its first byte on: what an earlier command left behind is removed."""
    if os.path.isfile(path):
        os.unlink(path)
    return os.open(path, flags, PRIVATE)
