"""Messages to instances, as tests read them."""

from __future__ import annotations

from affinity.orchestration.events import Event
from affinity.orchestration.wire import read_message


def decode_message(text: str) -> tuple[int, Event]:
    """The execution id and the event of a message."""
    execution_id, event, _ = read_message(text)
    return execution_id, event
