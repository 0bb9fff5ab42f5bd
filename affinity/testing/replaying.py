"""`replay`: a history that was exported, against the code of an app."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from affinity.composed.app import App
from affinity.orchestration.exported import ExportedHistory, parse_export, read_export
from affinity.orchestration.replaying import replay_execution
from affinity.payloads import Blobs, PayloadCodec
from affinity.payloads.exports import decode_export


def replay(
    app: App,
    history: Path | str | Mapping[str, Any],
    *,
    codec: PayloadCodec | None = None,
    blobs: Blobs | None = None,
) -> int:
    """Replay the history of an instance against the orchestrations of an app, as a worker does before it goes on with
    the instance. No activity runs, and nothing is written.

    An instance that had not ended is replayed to the end of its history. Earlier executions that continued as new are
    replayed too. The last step of an execution that failed is not compared: the error may have been corrected.

    Args:
        app: the app with the code that is tested.
        history: the path of a file that `affinity history ID --export FILE` wrote, or its content as JSON values, as
            `Client.export_history` returns it.
        codec: decodes the payloads, if they are encoded; by default what ``AFFINITY_CODEC`` names.
        blobs: the blob store that large ones of these are in; by default what ``AFFINITY_BLOBS`` names.

    Returns:
        The number of events that were replayed.

    Raises:
        Nondeterminism: the code does not match; with the number of the event and the line of the code.
        UnknownOrchestration: the app does not register the orchestration, or not in this version.
        OrchestrationUnreadable: an event is not as this release knows it.
        InvalidInput: this is not a history, or one without events.
        InvalidOptions: its payloads are encoded, and there is no codec.
        PayloadUnreadable: the codec cannot decode one of them.
        OSError: the file cannot be read.
    """
    exported = _read(history)
    count = 0
    for execution, unreadable in decode_export(exported, codec, blobs).executions:
        if unreadable is not None:
            raise unreadable
        replay_execution(app, exported, execution)
        count += len(execution.events)
    return count


def _read(history: Path | str | Mapping[str, Any]) -> ExportedHistory:
    if isinstance(history, Mapping):
        return read_export(history)
    return parse_export(Path(history).read_text(encoding="utf-8", errors="surrogateescape"), str(history))
