"""Waiting for a value of an instance (`ctx.values`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from affinity.client.calls import retry, unknown_instance
from affinity.client.changes import Change
from affinity.errors import NoValue, UnknownInstance
from affinity.orchestration.codec import Codec, read_json
from affinity.provider.contract import FINISHED, ClientProvider


async def read_values(provider: ClientProvider, instance_id: str, key: str | None = None) -> Mapping[str, str]:
    """Return the values of an instance, or that of one key, as JSON texts.

    Raises:
        UnknownInstance: no instance has this id.
    """
    if found := await retry(partial(provider.get_values, [instance_id], key)):
        return {each.key: each.value for each in found}
    (info,) = await retry(partial(provider.get_instance, [instance_id]))
    if info is None:
        raise unknown_instance(instance_id)
    return {}


class WantedValue(NamedTuple):
    """The value that a call waits for."""

    key: str
    codec: Codec | None  # of its type; None: any JSON
    accepts: Callable[[Any], bool]  # return whether a value is the awaited one


async def wait_value(provider: ClientProvider, instance_id: str, wanted: WantedValue, change: Change) -> Any:
    """Return a value once it is there and accepted. ``change``: of the instance, from before the call on.

    Raises:
        NoValue: the instance has ended without it.
        UnknownInstance: no instance has this id, or it was deleted meanwhile.
        NotSerializable: the value is not of the type.
    """
    key, generation = wanted.key, None
    while True:
        (info,) = await retry(partial(provider.get_instance, [instance_id]))  # first: its end writes no value
        if info is None:
            raise unknown_instance(instance_id)
        if generation not in {None, info.generation}:
            raise UnknownInstance(f"instance {instance_id!r} was deleted or restarted; another one has its id now")
        generation = info.generation
        for found in await retry(partial(provider.get_values, [instance_id], key)):
            value = read_json(found.value) if wanted.codec is None else wanted.codec.decode(found.value)
            if wanted.accepts(value):
                return value
        if info.status in FINISHED:
            raise NoValue(f"instance {instance_id!r} has ended ({info.status}) without the awaited value {key!r}")
        await change.wait()
