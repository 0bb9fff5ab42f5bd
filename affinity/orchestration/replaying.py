"""Replaying an execution against the code of an app, without a worker."""

from __future__ import annotations

from affinity.errors import UnknownOrchestration
from affinity.orchestration.app import KernelApp
from affinity.orchestration.definitions import OrchestrationDefinition
from affinity.orchestration.engine import Execution
from affinity.orchestration.exported import ExportedExecution, ExportedHistory, version_of


def replay_execution(app: KernelApp, history: ExportedHistory, execution: ExportedExecution) -> None:
    """Replay one execution of an instance.

    Raises:
        Nondeterminism: the code does not match.
        UnknownOrchestration: as for `find_definition`.
        OrchestrationUnreadable: an event is not as this version knows it.
    """
    events = execution.decode()
    definition = find_definition(app, history.name, version_of(events))
    live = Execution(definition, history.instance_id, execution.execution_id, history.session_id, traced=True)
    try:
        live.replay(events)
    finally:
        live.close()


def find_definition(app: KernelApp, name: str, version: str | None) -> OrchestrationDefinition:
    """The orchestration of an app in this version; None: in the latest.

    Raises:
        UnknownOrchestration: the app does not register it.
    """
    definition = app.find_orchestration(name, version)
    if definition is None:
        label = name if version is None else f"{name}@{version}"
        raise UnknownOrchestration(f"app {app.name!r} registers no orchestration {label!r}")
    return definition
