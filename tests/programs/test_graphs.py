"""What the judge of the graphs of LangGraph finds."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from affinity.conversation import AgentMessage, CustomToolUse, JournalEvent

pytest.importorskip("langgraph")

from tests.programs.areas.graphs import GraphsPart, GraphTask, GraphTurn, Sent, check
from tests.programs.program import Fault, Program
from tests.programs.run import run

ONE = "m0.0.0"
ASKED = CustomToolUse("interrupt", arguments={"label": f"{ONE}.0"})


def judge(*events: JournalEvent, answer: int | None = 7, waits: bool = False, interrupted: bool = False) -> None:
    name, entries = "graphs-0", [SimpleNamespace(event=event) for event in events]
    sent = Sent(answers={} if answer is None else {f"{ONE}.0": answer}, interrupted={name} if interrupted else set())
    sent.messages[name], sent.labels[name] = ["m0"], {ONE: GraphTask(asks=1), "m0.1.0": GraphTask()}
    found: Any = entries
    check(name, found, sent, waits=waits)


def said(*labels: str, answers: tuple[int, ...] = (7,)) -> AgentMessage:
    return AgentMessage(json.dumps([["m0"], [[each, answers if each == ONE else ()] for each in labels]]))


def test_what_is_right_is_found_right() -> None:
    judge(ASKED, said(ONE, "m0.1.0"))
    judge(ASKED, answer=None, waits=True)
    judge(ASKED, answer=None, interrupted=True)


@pytest.mark.parametrize(
    ("events", "error"),
    [
        ([ASKED, ASKED, said(ONE, "m0.1.0")], "twice"),
        ([ASKED, said(ONE, ONE, "m0.1.0")], "twice"),
        ([ASKED, said(ONE, "m0.1.0"), said()], "twice"),
        ([ASKED, said(ONE)], "are missing"),
        ([ASKED], "are missing"),
        ([ASKED, said(ONE, "m0.1.0", answers=(8,))], "was given"),
        ([ASKED, said(ONE, "m0.1.0", answers=())], "was given"),
    ],
)
def test_what_is_wrong_is_found(events: list[JournalEvent], error: str) -> None:
    with pytest.raises(AssertionError, match=error):
        judge(*events)


async def test_a_program_with_questions_passes_under_faults() -> None:
    tasks = (GraphTask(asks=2, deep=True), GraphTask(asks=1, fails=True, steps=1), GraphTask())
    turns = (
        GraphTurn(rounds=(tasks, tasks[:1]), answers=9, after=3),
        GraphTurn(answers=9, after=5),
        GraphTurn(answers=9),
    )
    faults = (Fault(at=3, kind="before"), Fault(at=6, kind="behind"))
    await run(Program({"graphs": GraphsPart(turns)}, workers=2, faults=faults))
