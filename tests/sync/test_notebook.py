"""A notebook: its kernel runs an event loop, and each cell is a task of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.support.worker_processes import ROOT

OPEN: Final = """
from affinity import UserMessage, sync
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
