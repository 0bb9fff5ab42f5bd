"""The first hour in a real browser: the button of `affinity dev` kills the worker in the middle of an answer."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.cli.conftest import launch
from tests.support.chromium import MARKS, open_browser
from tests.support.worker_processes import PATIENCE

pytestmark = MARKS


@contextmanager
def dev(target: str) -> Iterator[str]:
    """`affinity dev`, once its worker runs: gives the address that it prints."""
    with launch("dev", target, stderr=subprocess.PIPE) as process:
        children: list[psutil.Process] = []
        try:
            assert process.stderr is not None
            address = ""
            for line in process.stderr:
                address = line.partition("the console: ")[2].strip() or address
                if "running app" in line:
                    break
            yield address
        finally:
            children = psutil.Process(process.pid).children() if process.poll() is None else []
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE)
            for child in children:
                if child.is_running():
                    child.kill()


def test_a_conversation_goes_on_after_the_button(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer that was on its way comes from the next worker, on the page that is open; a second browser, which is
    logged in by the same address, shows it too.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AFFINITY_URL", raising=False)
    command("init", "mine")
    monkeypatch.chdir(tmp_path / "mine")
    with dev("mine:app") as address, open_browser() as browser:
        base = address.partition("/login")[0]
        command("conversation", "ask", "ann", "one", "--kind", "mine")
        with closing(browser.new_context()) as first, closing(browser.new_context()) as second:
            page = first.new_page()
            page.goto(address)
            expect(page.get_by_role("heading", name="Overview", exact=True)).to_be_visible()
            page.goto(f"{base}/conversation?id=ann")
            expect(answers(page)).to_have_text([re.compile("answer 1")])
            command("conversation", "send", "ann", "two")
            expect(page.locator("#streamed pre")).to_contain_text("This is")  # the answer is on its way
            page.get_by_role("button", name="Kill the worker").click()
            expect(page.get_by_role("heading", name="ann")).to_be_visible()
            expect(answers(page).last).to_contain_text("This is answer 2.", timeout=1_000 * PATIENCE)
            expect(page.locator("#streamed")).to_have_count(0, timeout=1_000 * PATIENCE)
            expect(answers(page)).to_have_count(2)
            wakes = json.loads(command("conversation", "wakes", "ann", "--json"))
            assert [wake["attempt"] for wake in wakes] == [2, 1]  # newest first
            command("conversation", "ask", "ann", "three", "--timeout", str(PATIENCE))
            expect(answers(page)).to_have_count(3)
            other = second.new_page()
            other.goto(f"{base}/conversation?id=ann")
            expect(answers(other)).to_have_count(0)
            other.goto(address)
            other.goto(f"{base}/conversation?id=ann")
            expect(answers(other).last).to_contain_text("This is answer 3.")


def command(*arguments: str) -> str:
    """Its output. It is a process, since the browser's event loop is on this thread."""
    with launch(*arguments, stdout=subprocess.PIPE) as process:
        stdout, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    return str(stdout)


def answers(page: Page) -> Locator:
    return page.locator(".transcript li.agent:not(.provisional)")
