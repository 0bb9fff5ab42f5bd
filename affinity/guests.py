"""The guests: features with a folder each, which join the kernel at its seams.

The kernel imports no guest. A seam asks for the modules of its side, which are imported then. The built-in guests are
listed here and nowhere else; CONTRIBUTING.md says what a guest consists of.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import ModuleType
from typing import Final, Literal, TypeAlias

__all__ = ["guests_with", "modules"]

Side: TypeAlias = Literal["store.payloads", "store.postgres", "store.sqlite", "worker", "page"]
"""A module of a guest: what is encoded of it, its part of a provider, of a worker, of the console. (Its command is in
`affinity.cli.main`.)
"""

GUESTS: Final[Mapping[str, frozenset[Side]]] = {
    "audit": frozenset({"store.payloads", "store.postgres", "store.sqlite", "page"}),
    "blobs": frozenset({"store.payloads", "store.postgres", "store.sqlite", "worker"}),
    "conversation": frozenset({"store.payloads", "store.postgres", "store.sqlite", "worker", "page"}),
    "flow": frozenset({"store.payloads", "store.postgres", "store.sqlite", "worker", "page"}),
    "schedules": frozenset({"store.payloads", "store.postgres", "store.sqlite", "worker", "page"}),
    "trends": frozenset({"store.payloads", "store.postgres", "store.sqlite", "worker", "page"}),
}
"""The folder of each guest below ``affinity``, and its sides. The names are sorted: their tables come in this order."""


@cache
def modules(side: Side) -> Mapping[str, ModuleType]:
    """Import this side of each guest that has it, by guest."""
    return {guest: import_module(f"affinity.{guest}.{side}") for guest in guests_with(side)}


def folders(side: str) -> list[Traversable]:
    """Return the folders of the guests that have this side; none is imported."""
    return [files(__package__) / guest for guest in guests_with(side)]


def guests_with(side: str) -> list[str]:
    """Return the guests that have this side."""
    return [guest for guest, sides in GUESTS.items() if side in sides]
