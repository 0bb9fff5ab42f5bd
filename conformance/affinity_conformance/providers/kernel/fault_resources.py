"""The verbs on resources that outlive a process under faults: what each needs, the call, and what must be true then."""

from __future__ import annotations

from functools import partial
from typing import Final

from affinity.limits import MAX_PAGE
from affinity.provider.contract import Provider
from affinity.records import ActivityKey, DurableResource
from affinity_conformance.providers.fault_fixtures import Attempt, FaultFixtures, once, returns, same

KEY: Final[ActivityKey] = ("none", 1, 1)
"""An activity that is not in the queue."""

TAKEN: Final = 3600.0
"""Seconds for which a resource that was taken is not taken again."""


async def begin_resource(fixtures: FaultFixtures) -> Attempt:
    """A new one, which the same activity gets again once it is created."""
    resource, name = fixtures.name("r"), fixtures.name("n")
    clean = fixtures.clean.provider

    async def then() -> None:
        assert await clean.get_resource(resource) is None
        assert await clean.set_resource_handle(resource, "1")
        found = await clean.begin_resource(fixtures.name("other"), name, KEY, held=None)
        assert found == DurableResource(resource, name, "1")
        await _remove(fixtures)

    begun = DurableResource(resource, name, None)
    return returns(begun, lambda: fixtures.provider.begin_resource(resource, name, KEY, held=None), then)


async def set_resource_handle(fixtures: FaultFixtures) -> Attempt:
    created = await _begun(fixtures)

    async def then() -> None:
        assert await fixtures.clean.provider.get_resource(created.resource_id) == created
        await _remove(fixtures)

    return returns(True, lambda: fixtures.provider.set_resource_handle(created.resource_id, "1"), then)


async def get_resource(fixtures: FaultFixtures) -> Attempt:
    created = await _created(fixtures)
    return same(fixtures, lambda provider: provider.get_resource(created.resource_id), lambda: _remove(fixtures))


async def take_unused_resources(fixtures: FaultFixtures) -> Attempt:
    """It is taken once."""
    created = await _created(fixtures)
    take = partial(fixtures.provider.take_unused_resources, [created.name], limit=10, seconds=TAKEN)

    async def then() -> None:
        assert await fixtures.clean.provider.get_resource(created.resource_id) is None
        assert await fixtures.clean.provider.take_unused_resources([created.name], limit=10, seconds=TAKEN) == []
        await fixtures.clean.provider.remove_resources([created.resource_id])

    return once([created], [], take, then)


async def find_unused_resources(fixtures: FaultFixtures) -> Attempt:
    created = await _created(fixtures)

    async def find(provider: Provider) -> bool:
        return created in await provider.find_unused_resources(without=["other"], limit=MAX_PAGE)

    return same(fixtures, find, lambda: _remove(fixtures))


async def remove_resources(fixtures: FaultFixtures) -> Attempt:
    """Only the taken one of two resources is removed."""
    created = await _created(fixtures)
    clean = fixtures.clean.provider
    assert await clean.take_unused_resources([created.name], limit=10, seconds=0.0) == [created]
    other = DurableResource(fixtures.name("other"), created.name, "2")
    await clean.begin_resource(other.resource_id, other.name, KEY, held=None)
    await clean.set_resource_handle(other.resource_id, "2")

    async def then() -> None:
        assert await clean.take_unused_resources([other.name], limit=10, seconds=TAKEN) == [other]
        await clean.remove_resources([other.resource_id])

    ids = [created.resource_id, other.resource_id]
    return returns(None, lambda: fixtures.provider.remove_resources(ids), then)


async def _begun(fixtures: FaultFixtures) -> DurableResource:
    """A resource of a name that only this attempt uses, as it is when it is created with the handle 1."""
    created = DurableResource(fixtures.name("r"), fixtures.name("n"), "1")
    await fixtures.clean.provider.begin_resource(created.resource_id, created.name, KEY, held=None)
    return created


async def _created(fixtures: FaultFixtures) -> DurableResource:
    created = await _begun(fixtures)
    assert await fixtures.clean.provider.set_resource_handle(created.resource_id, "1")
    return created


async def _remove(fixtures: FaultFixtures) -> None:
    """Remove the attempt's resource, so that no later attempt meets it."""
    taken = await fixtures.clean.provider.take_unused_resources([fixtures.name("n")], limit=10, seconds=TAKEN)
    await fixtures.clean.provider.remove_resources([resource.resource_id for resource in taken])


RESOURCE_VERBS: Final = {
    "begin_resource": begin_resource,
    "set_resource_handle": set_resource_handle,
    "get_resource": get_resource,
    "take_unused_resources": take_unused_resources,
    "find_unused_resources": find_unused_resources,
    "remove_resources": remove_resources,
}
"""The preparation of each verb, by its name."""
