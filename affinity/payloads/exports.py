"""Exported histories whose payloads are as they are stored: an export is read without a key, and a replay with it.

The document names the database and the instance, which are in the context of each payload. So it is decoded without
the database, and a payload that was altered or moved is refused as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

import anyio
from pydantic_core import to_json

from affinity.errors import InvalidOptions, PayloadUnreadable
from affinity.orchestration.codec import read_json
from affinity.orchestration.exported import ExportedExecution, ExportedHistory, replayed
from affinity.payloads.contract import PayloadCodec
from affinity.payloads.opening import (
    BLOB_PATIENCE,
    blobs_from_environment,
    check_blobs,
    check_codec,
    codec_from_environment,
)
from affinity.payloads.pipeline import Pipeline
from affinity.payloads.table import Encoded
from affinity.payloads.vault import Blobs, Vault
from affinity.provider.contract import HistoryPage
from affinity.records import UnreadableText, frozen

_MESSAGE: Final = Encoded("text", name="last_error")


@frozen()
class DecodedExport:
    """The executions of a history that are to match the code, with their payloads in the clear."""

    executions: Sequence[tuple[ExportedExecution, PayloadUnreadable | None]]
    """Newest first. With an error the execution is as it was exported: one of its payloads cannot be decoded."""
    suspension_message: str | None
    """The text of the error for which the instance is suspended; None: it is not."""


def decode_export(
    history: ExportedHistory, codec: PayloadCodec | None = None, blobs: Blobs | None = None
) -> DecodedExport:
    """Decode the executions of a history that are to match the code. Where nothing is encoded, no codec is used.

    It may be called where an event loop runs: the codec runs on a loop of its own, in another thread, which is waited
    for.

    Args:
        history: to decode.
        codec: of its database; None: what ``AFFINITY_CODEC`` names.
        blobs: the blob store of its database; None: what ``AFFINITY_BLOBS`` names.

    Raises:
        InvalidOptions: payloads are encoded, and there is no codec.
        CodecFailed, BlobStoreFailed: the codec, or the blob store, fails.
    """
    executions = [*replayed(history.executions)]
    if history.encoded_in is None:
        return DecodedExport([(execution, None) for execution in executions], history.suspension_message)
    codec = check_codec(codec) or codec_from_environment()
    if codec is None:
        raise InvalidOptions("the payloads of this history are encoded: give codec=, or name it in AFFINITY_CODEC")
    blobs = check_blobs(blobs) or blobs_from_environment()
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(anyio.run, _decode, history, executions, history.encoded_in, codec, blobs).result()


async def _decode(
    history: ExportedHistory,
    executions: Sequence[ExportedExecution],
    database: str,
    codec: PayloadCodec,
    blobs: Blobs | None,
) -> DecodedExport:
    of_no_database: Any = None  # which a vault asks before it writes
    vault = None if blobs is None else Vault(blobs, database, of_no_database, codec, patience=BLOB_PATIENCE)
    pipeline = Pipeline(codec, database, None, vault=vault)
    message = history.suspension_message
    if message is not None:
        message = str(await pipeline.decode_value(_MESSAGE, message, history.instance_id))
    return DecodedExport([await _decode_execution(pipeline, history, each) for each in executions], message)


async def _decode_execution(
    pipeline: Pipeline, history: ExportedHistory, execution: ExportedExecution
) -> tuple[ExportedExecution, PayloadUnreadable | None]:
    stored = HistoryPage(events=[to_json(event).decode() for event in execution.events], more=False)
    page: HistoryPage = await pipeline.decode(stored, history.instance_id)
    for number, text in enumerate(page.events, 1):
        if isinstance(text, UnreadableText):
            return execution, PayloadUnreadable(f"event {number} cannot be read: {text.error}")
    return replace(execution, events=[read_json(text) for text in page.events]), None
