"""What the judge of the agents of other libraries finds."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from affinity.conversation import AgentMessage, JournalEvent, ToolResult, ToolUse

pytest.importorskip("pydantic_ai")

from tests.programs.areas.plugged import DONE, Message, PlugsPart, Sent, check
from tests.programs.program import Fault, Program
from tests.programs.run import run

LOOK, PAY = "m0.look.0", "m0.pay.0"


def judge(*events: JournalEvent, allowed: bool = True, waits: bool = False) -> None:
    entries: Any = [SimpleNamespace(event=event) for event in events]
    check("plugs-0", entries, Sent({"plugs-0": {"m0"}}, {PAY: allowed}), waits=waits)


def called(label: str, result: str | None = None) -> list[JournalEvent]:
    use = ToolUse(label.split(".")[1], {"label": label}, tool_use_id=label)
    return [use] if result is None else [use, ToolResult(label, result)]


def refused(label: str, why: str) -> ToolResult:
    return ToolResult(label, {"error": {"kind": "refused", "message": why}}, is_error=True)


def answer(**read: str) -> AgentMessage:
    return AgentMessage(f"{DONE}{json.dumps([['m0'], read])}")


def test_what_is_right_is_found_right() -> None:
    judge(*called(LOOK, LOOK), *called(PAY, PAY), answer(**{LOOK: LOOK, PAY: PAY}))
    judge(*called(PAY), refused(PAY, "denied"), answer(**{PAY: "denied"}), allowed=False)
    judge(*called(LOOK, LOOK), *called(PAY), waits=True)


@pytest.mark.parametrize(
    ("events", "allowed", "error"),
    [
        ([answer(), answer()], True, "twice"),
        ([*called(LOOK, LOOK), *called(LOOK), answer()], True, "twice"),
        ([*called(LOOK, LOOK), ToolResult(LOOK, LOOK), answer()], True, "second result"),
        ([*called(PAY, PAY), answer()], False, "is allowed: False"),
        ([*called(LOOK, LOOK), answer(**{LOOK: "another"})], True, "has read another"),
        ([*called(LOOK), answer()], True, "have no result"),
        ([*called(PAY), answer()], False, "have no result"),
        ([*called(PAY), refused(PAY, "denied"), answer(**{PAY: "another"})], False, "has read another"),
        ([], True, "have no answer"),
    ],
)
def test_what_is_wrong_is_found(events: list[JournalEvent], allowed: bool, error: str) -> None:
    with pytest.raises(AssertionError, match=error):
        judge(*events, allowed=allowed)


async def test_a_program_with_an_approved_call_passes_under_faults() -> None:
    messages = (Message(looks=2, pays=1, after=3, answers=True), Message(looks=1, after=2, answers=True))
    faults = (Fault(at=3, kind="before"), Fault(at=6, kind="behind"))
    await run(Program({"plugs": PlugsPart(messages)}, workers=2, faults=faults))
