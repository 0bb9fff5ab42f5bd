"""Resources that outlive a process: a sandbox, a browser, a database of its own.

A session that uses one has its id in a label of its record, which commits with the result of the activity. So the
references are counted in the database, a copy of the record is one more, and a deleted record is one less. The life of
a resource::

    begun ──► created ──► used by records ──► unused ──► being destroyed ──► gone
      └───────────┴── the activity has ended, and no record has it ──▲

It is *begun* with the key of the activity before anything is created, so that nothing is lost with a process. While the
activity is queued, its next attempt goes on with the resource that an earlier attempt has created. Once the activity
has ended, with a result or not, a resource that no record refers to is destroyed by a worker that includes it. A
resource that is gone, or that its session has closed, is an error where it is used: it is not replaced by an empty one.
The label says so too of one that does not outlive the process, and has a name.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any, Final, TypeVar
from uuid import uuid4

from affinity.errors import InvalidOptions, NotSerializable, ResourceClosed, SessionError
from affinity.limits import MAX_LABELS, check_depth, check_payload
from affinity.readback import json_of
from affinity.records import DurableResource, ResourceStore, SessionMetadata, parse_stored
from affinity.session.resources import OPEN, RESOURCE_LABEL, Resource
from affinity.session.state import CachedState

T = TypeVar("T")

CLOSED: Final = "closed"
"""Value of such a label: the session has closed it."""


def without_resources(metadata: SessionMetadata) -> SessionMetadata:
    """The metadata of a copy that leaves resources behind, as those of another database. What was closed stays so."""
    labels = {
        key: value
        for key, value in metadata.labels.items()
        if key != OPEN and (not key.startswith(RESOURCE_LABEL) or value == CLOSED)
    }
    return replace(metadata, labels=labels)


async def use_durable(resource: Resource[T], cached: CachedState[Any], ctx: Any) -> T:
    """The value of the session's resource, created if it has none.

    Raises:
        SessionError: this is no activity on a worker.
        InvalidOptions: the session has as many labels as it may have.
        ResourceClosed: the session has closed it, or it is gone.
        NotSerializable, PayloadTooLarge: the handle has no JSON form, or is too large.
        Exception: what ``create`` or ``open`` raised.
    """
    store: ResourceStore | None = getattr(getattr(ctx, "session_store", None), "resources", None)
    if store is None or cached.store is not ctx.session_store:
        raise SessionError(f"resource {resource.name!r} is kept in the worker's database: use it in an activity")
    async with cached.resources.beginning(resource):  # parts of an activity that run at the same time share one
        found = cached.metadata.labels.get(RESOURCE_LABEL + resource.name)
        if found == CLOSED:
            raise ResourceClosed(cached.session_id)
        row = await (_begin(resource, cached, ctx, store) if found is None else store.get_resource(found))
        if row is None or row.handle is None or cached.metadata.labels.get(RESOURCE_LABEL + resource.name) != found:
            raise ResourceClosed(cached.session_id)
        _set_label(cached, resource, row.resource_id)
    return await cached.resources.hold(resource, row.resource_id, cached.session_id, parse_stored(row.handle))


async def use_local(resource: Resource[T], cached: CachedState[Any]) -> T:
    """The value of a resource of this process.

    Raises:
        ResourceClosed, SessionError, Exception: as `HeldResources.get`.
    """
    if resource.name and cached.metadata.labels.get(RESOURCE_LABEL + resource.name) == CLOSED:
        raise ResourceClosed(cached.session_id)
    return await cached.resources.get(resource, cached.session_id if cached.home is None else cached.home[0])


async def close_for_good(resource: Resource[Any], cached: CachedState[Any]) -> None:
    """End the session's use, with the commit of its state, which names the resource. It may be one of this process.

    Raises:
        InvalidOptions: it has no name; or the session has as many labels as it may have.
    """
    if not resource.name:
        raise InvalidOptions(
            "a resource without a name would be opened again by the next process: give it name=, or release what it "
            "holds and go on using it"
        )
    _set_label(cached, resource, CLOSED)
    await cached.resources.close(resource)


def _set_label(cached: CachedState[Any], resource: Resource[Any], value: str) -> None:
    labels = {**cached.metadata.labels, RESOURCE_LABEL + resource.name: value}
    if len(labels) > MAX_LABELS:
        raise InvalidOptions(f"no label is left for resource {resource.name!r}: a session has {MAX_LABELS} at most")
    if labels != dict(cached.metadata.labels):
        cached.metadata = replace(cached.metadata, labels=labels)


def _new_id(generation: str | None) -> str:
    """A random id, whose first part all ids of one instance share; see `ResourceStore.begin_resource`."""
    return f"{sha256(generation.encode()).hexdigest()[:8]}-{uuid4().hex[:23]}" if generation else uuid4().hex


async def _begin(
    resource: Resource[Any], cached: CachedState[Any], ctx: Any, store: ResourceStore
) -> DurableResource | None:
    key = (ctx.instance_id, ctx.execution_id, ctx.activity_id)
    held = cached.resources.key_of(resource)
    row = await store.begin_resource(_new_id(ctx.instance_generation), resource.name, key, held=held)
    if held is not None and held != row.resource_id:
        await cached.resources.release(resource)
    if row.handle is not None:
        return row
    handle = await resource._create_now(row.resource_id, cached.session_id)
    what = f"the handle of resource {resource.name!r}"
    try:
        text, _ = json_of(handle)
    except ValueError as error:
        raise NotSerializable(f"{what} has no JSON form: {error}") from error
    check_payload(check_depth(text, what), what)
    if not await store.set_resource_handle(row.resource_id, text):  # this attempt has been given up long ago
        await resource._destroy_now(row.resource_id, handle)
        raise SessionError(f"resource {resource.name!r} was given up while it was created")
    return row._replace(handle=text)
