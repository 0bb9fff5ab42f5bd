"""The parts of a provider that guests add: composing the provider's class from them, and checking for a part.

Each engine has a record of such a part: `affinity.provider.postgres.parts.PostgresPart` and
`affinity.provider.sqlite.parts.SqlitePart`. A guest's module ``store.postgres`` or ``store.sqlite`` names its part
``PART``. The schema of a guest is the file ``store/postgres_schema.sql`` or ``store/sqlite_schema.sql``, or a
folder ``store/postgres_schema`` of several; its objects are created after those of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Protocol, TypeVar

from affinity.errors import InvalidOptions
from affinity.provider.contract import ProviderConnection

T = TypeVar("T")


class StorePart(Protocol):
    """The part of a guest in a provider of any engine."""

    @property
    def verbs(self) -> Mapping[str, Callable[..., Any]]:
        """The methods that the provider has of this guest, by name."""
        ...


def composed(cls: type[T], parts: Callable[[], Iterable[StorePart]]) -> type[T]:
    """Return the class of a provider with the verbs of these parts; itself, if it has them.

    A subclass may override them, and call them by `super`: they stand behind its own methods.
    """
    whole: type[T] = _compose(cls, parts)  # type: ignore[arg-type]  # a class is hashable
    return whole


@cache
def _compose(cls: type, parts: Callable[[], Iterable[StorePart]]) -> type:
    verbs = _verbs(parts)
    if issubclass(cls, verbs):
        return cls
    return type(cls.__name__, (cls, verbs), {"__module__": cls.__module__, "__doc__": cls.__doc__})


@cache
def _verbs(parts: Callable[[], Iterable[StorePart]]) -> type:
    return type("GuestVerbs", (), {name: verb for part in parts() for name, verb in part.verbs.items()})


def missing_verbs(provider: ProviderConnection, protocol: type) -> list[str]:
    """Return the verbs of a guest's protocol that a provider lacks."""
    own = [name for name in vars(protocol) if not name.startswith("_")]
    return [name for name in own if not hasattr(provider, name)]


def check_part(provider: ProviderConnection, protocol: type) -> None:
    """Check that a provider has the verbs of a guest.

    Raises:
        InvalidOptions: it lacks some.
    """
    if missing := missing_verbs(provider, protocol):
        raise InvalidOptions(f"the provider of this database lacks {', '.join(missing)}: it has no {protocol.__name__}")
