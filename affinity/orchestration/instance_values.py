"""The values of an instance, as its orchestration uses them: `ctx.values`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from affinity.limits import MAX_VALUE_BYTES, check_id
from affinity.orchestration import events as ev
from affinity.orchestration.codec import Codec
from affinity.orchestration.futures import InstanceValueFuture
from affinity.orchestration.scheduler import DurableFuture, Scheduler, refuse_awaitable

if TYPE_CHECKING:
    from typing_extensions import TypeForm

T = TypeVar("T")

_VALUE: Final = Codec(Any, "value", MAX_VALUE_BYTES)


class InstanceValues:
    """The values of the instance, by key: `OrchestrationContext.values`.

    `continue_as_new` keeps them, and they stay after the end until the instance is deleted or started again. Clients
    read them, and wait for them (`Client.wait_value`).
    """

    __slots__ = ("_scheduler",)

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def set(self, key: str, value: Any) -> None:
        """Set a value, which is visible to clients when this step is committed. Setting it again to what this execution
        has set or read records nothing.

        An instance with more than ``MAX_VALUES`` (150) is suspended.

        Raises:
            InvalidId: the key is not allowed.
            NotSerializable: JSON cannot represent the value.
            PayloadTooLarge: it is over ``MAX_VALUE_BYTES`` (64 KiB).
        """
        scheduler, values = self._scheduler, self._scheduler.values
        scheduler.require_running()
        check_id(key, "key of a value")
        refuse_awaitable(value, "values.set was passed")
        text = _VALUE.encode(value)
        if values.knows(key) and values.get(key) == text:
            return
        values.note(key, text)
        scheduler.pending.append(ev.ValueSet(key, text))

    @overload
    def get(self, key: str) -> DurableFuture[Any]: ...
    @overload
    def get(self, key: str, type: TypeForm[T]) -> DurableFuture[T | None]: ...
    def get(self, key: str, type: Any = Any) -> DurableFuture[Any]:
        """Return the future of the value that there is at this call; of None if there is none.

        Args:
            key: of the value.
            type: of the value; anything that pydantic knows. A value that does not fit raises ``NotSerializable`` at
                the await.
        """
        self._scheduler.require_running()
        check_id(key, "key of a value")
        return InstanceValueFuture(self._scheduler, key, None if type is Any else Codec(type, f"value {key!r}"))

    def clear(self, key: str | None = None) -> None:
        """Remove a value, or all of them."""
        scheduler, values = self._scheduler, self._scheduler.values
        scheduler.require_running()
        if key is None:
            values.clear()
            scheduler.pending.append(ev.ValuesCleared())
            return
        check_id(key, "key of a value")
        if not values.knows(key) or values.get(key) is not None:
            values.note(key, None)
            scheduler.pending.append(ev.ValueSet(key))
