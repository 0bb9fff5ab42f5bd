"""A notebook: its kernel runs an event loop, and each cell is a task of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.support.worker_processes import ROOT

OPEN: Final = """
from affinity import sync
from affinity.conversation import UserMessage
from tests.sync.application import greet, support
client = sync.Client(URL)
run = client.start(greet, "Ada")
"""
USE: Final = """
import asyncio
assert asyncio.get_running_loop().is_running()
print(run.wait(timeout=30))
for item in client.conversation(support, "c").stream_reply(UserMessage("hello")):
    pass
print(item.text)
"""
CLOSE: Final = "client.close()"
AFTER: Final = "run.status()"


def execute(url: str, folder: Path, *cells: str) -> list[str]:
    """What each cell printed."""
    head = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nURL = {url!r}"
    new: Any = nbformat.v4
    book = new.new_notebook(cells=[new.new_code_cell(each) for each in (head, *cells)])
    NotebookClient(book, timeout=60, resources={"metadata": {"path": str(folder)}}).execute()
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in book.cells[1:]]


def test_a_client_is_opened_in_one_cell_used_in_the_next_and_closed_in_another(file_url: str, tmp_path: Path) -> None:
    assert execute(file_url, tmp_path, OPEN, USE, CLOSE) == ["", "HELLO ADA\n1: hello\n", ""]


def test_a_cell_behind_the_close_says_so(file_url: str, tmp_path: Path) -> None:
    with pytest.raises(CellExecutionError, match="this sync client is closed"):
        execute(file_url, tmp_path, OPEN, CLOSE, AFTER)


DEFINE: Final = """
from datetime import timedelta
import affinity
app, other = affinity.App("shop"), affinity.App("other")
chats = affinity.Conversations(dict, kind="chats")
"""
CELLS: Final = {
    "activity": "@app.activity\nasync def step(ctx): return NUMBER",
    "orchestration": "@app.orchestration\nasync def walk(ctx): return NUMBER",
    "of an included app": "@other.activity\nasync def step(ctx): return NUMBER\napp.include(other)",
    "handler": "@chats.on_wake\nasync def respond(wake, chat): return NUMBER",
    "migration": "@chats.migration(1, 2)\ndef lift(state): return NUMBER",
    "schedule": "app.schedule('nightly', 'walk', every=timedelta(hours=NUMBER))",
    "kind": (
        "talks = affinity.Conversations(dict, kind='talks')\n@talks.on_wake\n"
        "async def answer(wake, chat): return NUMBER\napp.include(talks)"
    ),
    "kind of an included app": (
        "parts = affinity.App('parts')\ntalks = affinity.Conversations(dict, kind='parts')\n@talks.on_wake\n"
        "async def answer(wake, chat): return NUMBER\nparts.include(talks)\napp.include(parts)"
    ),
    "resource": (
        "rooms = affinity.Resource(name='rooms', create=lambda id, session: NUMBER, destroy=lambda id, handle: None)\n"
        "app.include(rooms)"
    ),
}
SHOW: Final = """
import asyncio
step, walk = app.activities["step"].function, app.orchestrations["walk@1.0.0"].function
assert app.find_orchestration("walk").function is walk
print(await step(None), await walk(None), await chats._get_handler()(None, None))
print(app.schedules["nightly"].timing, len(app.session_listeners), len(app.resources), app.resources[0] is rooms)
print(await app.session_listeners[0]._get_handler()(None, None))
app.check()
"""
OTHERS: Final = """
def refused(make):
    try:
        make()
    except (affinity.errors.InvalidApp, affinity.errors.SessionMigrationAmbiguous) as error:
        return True
async def one(ctx): ...
print(refused(lambda: app.activity(name="step")(one)), refused(lambda: chats.on_wake(one)))
"""


def test_a_cell_that_runs_again_replaces_what_it_has_defined(file_url: str, tmp_path: Path) -> None:
    """And another function of the name is refused, as in a program."""
    cells = [each.replace("NUMBER", str(n)) for n in (1, 2) for each in CELLS.values()]
    *_, shown, others = execute(file_url, tmp_path, DEFINE, *cells, SHOW, OTHERS)
    assert shown == "2 2 2\nevery 2:00:00 2 1 True\n2\n"
    assert others == "True True\n"


@pytest.mark.slow
def test_a_program_that_defines_a_name_twice_is_refused(tmp_path: Path) -> None:
    for name, cell in CELLS.items():
        script = tmp_path / "twice.py"
        script.write_text("\n".join([DEFINE, cell.replace("NUMBER", "1"), cell.replace("NUMBER", "2")]))
        search = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, script], check=False, capture_output=True, text=True, env=search)
        refusal = "SessionMigrationAmbiguous" if name == "migration" else "InvalidApp"
        assert refusal in done.stderr, name
