"""The history of an instance as a document, in pieces: none of them is larger than an event."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from pydantic_core import to_json

from affinity.errors import NotSerializable
from affinity.orchestration.codec import read_json
from affinity.orchestration.exported import head
from affinity.orchestration.wire import without_trace
from affinity.provider.contract import HistoryCursor, HistoryPage, InstanceInfo
from affinity.provider.history import history_pages


async def document_parts(
    info: InstanceInfo, executions: Sequence[int], read_page: Callable[[HistoryCursor], Awaitable[HistoryPage]]
) -> AsyncIterator[str]:
    """The text of the document, in pieces; each event is one line."""
    why = info.suspension if info.execution_id == executions[-1] else None
    suspension = None if why is None else (why.error_type, why.message)
    yield to_json(head(info.instance_id, info.name, info.session_id, info.status, suspension)).decode()[:-1]
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


def _checked(text: str) -> str:
    """An event as it is stored. Text that is not JSON would make the whole document unreadable."""
    try:
        read_json(text)
    except NotSerializable:
        return to_json({"type": "unreadable", "text": text.encode("utf-8", "backslashreplace").decode()}).decode()
    return text
