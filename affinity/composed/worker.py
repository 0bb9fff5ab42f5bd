"""The worker of an application: the worker of the kernel, with the options of the guests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from affinity.composed.options import RuntimeOptions
from affinity.provider.contract import Provider
from affinity.worker.clients import ClientMaker
from affinity.worker.worker import KernelWorker

if TYPE_CHECKING:
    from affinity.composed.client import Client


class _ClientMaker:
    """Makes the clients that activities use."""

    def make(self, provider: Provider) -> Client:
        """Return a client on the provider of a worker."""
        from affinity.composed.client import Client  # not before an activity uses it: most workers need no client

        return Client.from_provider(provider)

    def to_sync(self, get: Callable[[], Client], loop: asyncio.AbstractEventLoop, thread: int) -> object:
        """Return its sync form, whose module is above this one, and is loaded when it is first used."""
        return import_module("affinity.sync.on_loop").client_on(get, loop, thread)


class Worker(KernelWorker):
    """Runs the orchestrations and activities of an app until the ``async with`` block ends, then drains.

    Args:
        app: its orchestrations and activities.
        url: the database, see `affinity.provider.open_provider`.
        options: see `RuntimeOptions`; by default from the environment.
        listeners: notified when this worker loses a session, in addition to the app's listeners.
        migrate: bring the database's schema up to date first.
        registry: a ``prometheus_client.CollectorRegistry`` of the application, whose metrics are served on the port of
            the worker's, behind those.
        blobs: a store for large payloads (`affinity.blobs.Blobs`); by default what ``AFFINITY_BLOBS`` names.
        codec: encodes the payloads (`affinity.PayloadCodec`); by default what ``AFFINITY_CODEC`` names.

    Raises:
        InvalidUrl, AccessDenied, SchemaMismatch: on entry.
        ProviderError: on entry, when the database fails in another way for ``startup_timeout``.
        InvalidOptions: ``codec``, ``blobs`` or ``registry`` is none. On entry, when the port of the metrics is taken,
            or its host is not an address of this machine; or when the payloads of the database are encoded, or in a
            blob store, and there is no codec, or no store.
        InvalidApp: on entry, when an annotation of the app cannot be resolved.
        SessionMigrationAmbiguous: on entry, when two shortest chains of migrations lead to the schema of a `Sessions`.
        InvalidInput: on entry, when this object was opened before.
        WorkerFenced: from `wait_ended` and on exit, when another process has taken the worker's name.
    """

    _options_type: ClassVar[type[RuntimeOptions]] = RuntimeOptions
    _client_maker: ClassVar[ClientMaker | None] = _ClientMaker()
