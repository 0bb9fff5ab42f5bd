"""The worker of an application: the worker of the kernel, with the options of the guests."""

from __future__ import annotations

from typing import ClassVar

from affinity.composed.options import RuntimeOptions
from affinity.worker.worker import KernelWorker


class Worker(KernelWorker):
    """Runs the orchestrations and activities of an app until the ``async with`` block ends, then drains.

    Args:
        app: its orchestrations and activities.
        url: the database, see `affinity.provider.open_provider`.
        options: see `RuntimeOptions`; by default from the environment.
        listeners: notified when this worker loses a session, in addition to the app's listeners.
        migrate: bring the database's schema up to date first.

    Raises:
        InvalidUrl, AccessDenied, SchemaMismatch: on entry.
        ProviderError: on entry, when the database fails in another way for ``startup_timeout``.
        InvalidOptions: on entry, when the port of the metrics is taken, or its host is not an address of this machine.
        InvalidApp: on entry, when an annotation of the app cannot be resolved.
        SessionMigrationAmbiguous: on entry, when two shortest chains of migrations lead to the schema of a `Sessions`.
        InvalidInput: on entry, when this object was opened before.
        WorkerFenced: from `wait_ended` and on exit, when another process has taken the worker's name.
    """

    _options_type: ClassVar[type[RuntimeOptions]] = RuntimeOptions
