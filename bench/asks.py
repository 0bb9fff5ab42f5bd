"""The floor of asks: the rows of a question and its answer, in as few transactions as the system has.

An append adds the input and queues the parked wake. A fetch locks it. The commit removes it, adds two events to the
history, the four entries of the wake and its row, writes the state and the watermark, and parks the next wake. A read
gives the reply.
"""

from __future__ import annotations

from typing import Any, Final

from bench.bare import BareLoop
from bench.fused import TOKEN

INPUT: Final = '{"content":"question 10","kind":"user.message"}'
KINDS: Final = ["span.started", "agent.message", "span.completed", "conversation.idle"]
ENTRIES: Final = [
    '{"span":"wake","name":"talk.wake","attempt":1,"worker":"worker-0","started_at":"2026-11-22T12:00:00.123456Z",'
    '"read":51,"kind":"span.started"}',
    '{"content":"answer to question 10, after 10","usage":{},"message_id":"","kind":"agent.message"}',
    '{"span":"wake","name":"talk.wake","attempt":1,"worker":"worker-0","started_at":"2026-11-22T12:00:00.123456Z",'
    '"seconds":0.001234,"kind":"span.completed"}',
    '{"stop_reason":"end_turn","kind":"conversation.idle"}',
]
SCHEDULED: Final = (
    '{"type":"activity_scheduled","name":"talk.wake","input":{"wake":"0123456789ab-1-10","processed":51},'
    '"session_id":"walk-10","parked":true}'
)
COMPLETED: Final = '{"type":"activity_completed","schedule_id":21,"result":{"outcome":"done","processed":51}}'
PAYLOAD: Final = (
    '{"input":{"wake":"0123456789ab-1-10","processed":51},"orchestration":"talk.conversation","version":"1.0.0",'
    '"generation":"0123456789abcdef"}'
)
"""As long as in our conversations."""


class AskLoop(BareLoop):
    """Each round is an ask of all conversations."""

    file = "asks.sql"
    statements = ("append", "fetch", "commit", "read")

    def values(self, rounds: int) -> dict[str, Any]:
        return {
            "activity": 2 * rounds + 1,
            "event": f"0123456789abcdef-{rounds:x}",
            "input": INPUT,
            "token": TOKEN,
            "wake": f"0123456789ab-1-{rounds}",
            "kinds": KINDS,
            "entries": ENTRIES,
            "completed": COMPLETED,
            "scheduled": SCHEDULED,
            "payload": PAYLOAD,
            "state": f'{{"answers":{rounds}}}'.encode(),
        }
