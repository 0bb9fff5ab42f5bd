"""Limits that code declares: the part of `affinity.App` for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, cast

from affinity.errors import InvalidLimit
from affinity.flow.limit import Limit, limit_of, mark_declared
from affinity.flow.store.contract import LimitSpec
from affinity.limits import check_items
from affinity.orchestration import KernelApp
from affinity.orchestration.definitions import ActivityDefinition
from affinity.user_code import is_interactive

LIMITS: Final = "limits"
"""Key of the limits in `KernelApp.declared`."""


def declared_limits(app: KernelApp) -> Sequence[LimitSpec]:
    """Return the limits that the code of an app declares."""
    return [limit._spec for limit in _limits_of(app).values()]


def declare_limits(app: KernelApp, limits: Iterable[object]) -> None:
    """Declare the limits of some work of an app: `Limit` objects, or keys of them. Equal ones count once.

    Raises:
        InvalidLimit: one is no limit, or the app has another one of its name.
    """
    for limit in map(limit_of, limits):
        if _limits_of(app).get(limit.name, limit) != limit and not is_interactive():
            raise InvalidLimit(
                f"app {app.name!r} has two limits named {limit.name!r}, with other bounds: make it once, and import it "
                "where it is used"
            )
        app._declared.setdefault(LIMITS, {})[limit.name] = limit
        mark_declared(limit)


def _limits_of(app: KernelApp) -> Mapping[str, Limit]:
    return cast(Mapping[str, Limit], app.declared.get(LIMITS, {}))


class LimitDeclarations(KernelApp):
    """The part of `affinity.App` that declares limits."""

    def __init__(self, name: str = "app", *, limits: Iterable[Limit] = ()) -> None:
        """See `affinity.App`.

        Raises:
            InvalidLimit: one is no limit, they are no list, or two of one name have other bounds.
        """
        super().__init__(name)
        declare_limits(self, check_items(limits, "limits", error=InvalidLimit))

    @property
    def limits(self) -> Mapping[str, Limit]:
        """The declared limits, by name."""
        return MappingProxyType(_limits_of(self))

    def _add_activity(self, definition: ActivityDefinition) -> None:
        declare_limits(self, definition.limits)
        super()._add_activity(definition)
