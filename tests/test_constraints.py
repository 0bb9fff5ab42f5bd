"""What the set-up commands install is pinned: `constraints.txt` names every package that ours brings along."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("demo", "test")


def test_everything_that_is_installed_is_pinned() -> None:
    """Also what is needed by what we need, as far as it is needed here."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines if re.fullmatch(r"[\w.-]+==[\w.+]+", line)}
    assert len(pinned) == len(lines)
    needed = {name for extra in EXTRAS for name in _needed(Requirement(f"affinity[{extra}]"), set())} - {"affinity"}
    assert {"psycopg", "pytest", "cryptography"} <= needed
    assert needed <= pinned


def _needed(wanted: Requirement, seen: set[str]) -> Iterator[str]:
    """The package, and what it requires with these extras."""
    name = canonicalize_name(wanted.name)
    key = f"{name}[{','.join(sorted(wanted.extras))}]"
    if key in seen:
        return
    seen.add(key)
    try:
        required = requires(name) or []
    except PackageNotFoundError:  # for another platform, or another extra of somebody else's
        return
    yield name
    for text in required:
        one = Requirement(text)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in (wanted.extras or {""})):
            yield from _needed(one, seen)
