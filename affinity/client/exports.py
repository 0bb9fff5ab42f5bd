"""The history of an instance as a document, in pieces: none of them is larger than an event."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from pydantic_core import to_json

from affinity.batching import batches
from affinity.blob import digests_in
from affinity.client.calls import retry
from affinity.errors import AccessDenied, NotSerializable
from affinity.orchestration.codec import read_json
from affinity.orchestration.exported import head
from affinity.orchestration.wire import without_trace
from affinity.payloads import vault_of
from affinity.provider.contract import HistoryCursor, HistoryPage, InstanceInfo
from affinity.provider.history import history_pages

logger: Final = logging.getLogger("affinity.client")


async def document_parts(
    info: InstanceInfo,
    executions: Sequence[int],
    read_page: Callable[[HistoryCursor], Awaitable[HistoryPage]],
    encoded_in: str | None,
) -> AsyncIterator[str]:
    """The text of the document, in pieces; each event is one line. ``encoded_in``: see `ExportedHistory`."""
    why = info.suspension if info.execution_id == executions[-1] else None
    suspension = None if why is None else (why.error_type, why.message)
    first = head(info.instance_id, info.name, info.session_id, info.status, suspension, encoded_in=encoded_in)
    yield to_json(first).decode()[:-1]
    yield ',"executions":['
    for number, execution_id in enumerate(executions):
        yield f'{"," if number else ""}\n{{"execution_id":{execution_id},"events":['
        separator = "\n"
        async for events in history_pages(read_page, HistoryCursor(info.instance_id, execution_id)):
            for text in events:
                yield separator + without_trace(_checked(text))
                separator = ",\n"
        yield "\n]}"
    yield "\n]}\n"


async def keep_named_blobs(provider: Any, exported: Iterable[str | bytes]) -> None:
    """Keep the blobs that a part of an export names, also when no row names them. If this user may not write, log that
    they are not kept.

    Raises:
        ProviderError: the database fails.
        BlobStoreFailed: the blob store does.
    """
    found = set().union(*(digests_in(part if isinstance(part, str) else part.decode("latin-1")) for part in exported))
    keep = getattr(provider, "keep_exported_blobs", None)
    if not found or keep is None:
        return
    try:
        for batch in batches(sorted(found)):
            await retry(partial(keep, batch))
    except AccessDenied:
        logger.warning("an export names %d blobs, and this user may not keep them: they go with their rows", len(found))
        return
    if (vault := vault_of(provider)) is not None:
        await retry(partial(vault.use, found))  # a collection that did not see the export must see this


def _checked(text: str) -> str:
    """An event as it is stored. Text that is not JSON would make the whole document unreadable."""
    try:
        read_json(text)
    except NotSerializable:
        return to_json({"type": "unreadable", "text": text.encode("utf-8", "backslashreplace").decode()}).decode()
    return text
