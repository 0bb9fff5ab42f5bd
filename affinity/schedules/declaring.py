"""Schedules that code declares: the calls of `affinity.App`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar, Unpack, cast, overload

from affinity.orchestration import KernelApp
from affinity.orchestration.context import OrchestrationFunction
from affinity.schedules.spec import ScheduleOptions, ScheduleSpec, Target, TickOptions, check_name, new_spec

I = TypeVar("I")  # noqa: E741 - the usual letter for an input type

SCHEDULES: Final = "schedules"
"""Key of the schedules in `KernelApp.declared`."""


def declared_schedules(app: KernelApp) -> Mapping[str, ScheduleSpec]:
    """Return the schedules that the code of an app declares, by name."""
    return MappingProxyType(cast(Mapping[str, ScheduleSpec], app.declared.get(SCHEDULES, {})))


class ScheduleDeclarations(KernelApp):
    """The part of `affinity.App` that declares schedules."""

    @property
    def schedules(self) -> Mapping[str, ScheduleSpec]:
        """The declared schedules, by name."""
        return declared_schedules(self)

    @overload
    def schedule(
        self, name: str, target: OrchestrationFunction[I, Any], *, input: I, **options: Unpack[TickOptions]
    ) -> None: ...
    @overload
    def schedule(
        self, name: str, target: Target, *, due_as: str | None = ..., **options: Unpack[TickOptions]
    ) -> None: ...
    @overload
    def schedule(
        self,
        name: str,
        target: OrchestrationFunction[Any, Any],
        *,
        input: Any,
        due_as: str,
        **options: Unpack[TickOptions],
    ) -> None: ...
    @overload
    def schedule(self, name: str, target: str, **options: Unpack[ScheduleOptions]) -> None: ...
    def schedule(self, name: str, target: Target, **options: Unpack[ScheduleOptions]) -> None:
        """Declare a schedule. The database has it as soon as a worker of the newest version of this app runs; when that
        version no longer declares it, it is paused.

        ::

            app.schedule("nightly", summary, cron="0 3 * * *", zone="Europe/Berlin")

        Args:
            name: of the schedule; unique in the database.
            target: an orchestration, by function or name; an `affinity.ExternalEvent`, which is sent to its instance;
                or a `ScheduleTarget` that another layer has made.
            options: see `affinity.schedules.spec.ScheduleOptions`.

        Raises:
            InvalidApp: the name is taken, or the target is not a registered orchestration.
            InvalidSchedule: an option is refused, such as a cron line or the name of a zone.
            InvalidInput: another argument is refused; the subclass is the reason.
        """
        spec = new_spec(target, options)
        self._declare(SCHEDULES, check_name(name), spec)
