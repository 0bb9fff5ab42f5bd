"""Orchestrations that reply to events, for tests in one process and in several."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from pydantic import BaseModel

from affinity import ActivityContext, App, Event, OrchestrationContext


class Question(BaseModel):
    text: str
    note: str = ""  # a file in which each run of the activity adds a line


class Answer(BaseModel):
    text: str
    number: int


Ask = Event("ask", Question, reply=Answer)

app = App("askable")


@app.activity
async def think(ctx: ActivityContext, question: Question) -> str:
    if question.note:
        path = Path(question.note)
        with path.open("a") as file:
            file.write(f"{question.text}\n")
        if question.text == "poison" and path.read_text().count("poison") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return question.text.upper()


@app.orchestration
async def oracle(ctx: OrchestrationContext, number: int) -> None:
    """Answers one question after the other, and continues as new after ten."""
    for _ in range(10):
        asked = await ctx.schedule_wait(Ask)
        number += 1
        if asked.data.text == "end":
            return
        if asked.data.text == "fail":
            raise ValueError("no idea")
        if asked.data.text == "silence":
            continue
        text = await ctx.schedule_activity(think, asked.data)
        asked.reply(Answer(text=text, number=number))
    ctx.continue_as_new(number)
