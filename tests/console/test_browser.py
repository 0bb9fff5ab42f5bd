"""The console in a real browser, beside three worker processes of which one is killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from affinity import Client
from affinity.conversation import UserMessage
from tests.support.console_app import chats, shows
from tests.support.worker_processes import PATIENCE, ROOT, Workers, open_workers

T = TypeVar("T")

CHROMIUM: Final = shutil.which("chromium")
SECOND: Final = 1_000.0
APP: Final = "tests.support.console_app:app"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None and os.environ.get("AFFINITY_TESTS_BROWSER") != "required",
        reason="this machine has no program chromium",
    ),
]


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    url = f"sqlite:///{tmp_path_factory.mktemp('browser') / 'affinity.db'}"
    subprocess.run([sys.executable, "-m", "affinity", "migrate", "--url", url], check=True, cwd=ROOT)
    with open_workers(url) as workers:
        for name in ("one", "two", "three"):
            workers.start(name, APP)
        yield workers


@contextmanager
def served(url: str, *options: str) -> Iterator[str]:
    """The address that the command prints, with its token."""
    command = [sys.executable, "-m", "affinity", "console", "--url", url, "--port", "0", "--json", *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            text = ""
            while not text.endswith("}\n"):
                line = process.stdout.readline()
                assert line, "the console has ended"
                text += line
            yield json.loads(text)["url"]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


class Windows:
    """Windows of one browser profile that is logged in; what goes wrong in a page fails the test."""

    def __init__(self, browser: Browser, address: str, **options: Any) -> None:
        self._context = browser.new_context(**options)
        self.base = re.sub(r"/(login\?.*)?$", "", address)
        self.wrong: list[str] = []
        first = self.open("")
        first.goto(address)
        expect(first.get_by_role("heading", name="Overview", exact=True)).to_be_visible()
        first.close()

    def open(self, path: str) -> Page:
        """A new window, with a page of the console."""
        page = self._context.new_page()
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("console", self._note)
        page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))
        if path:
            page.goto(self.base + path)
        return page

    def _note(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.wrong.append(f"{message.text} {message.location}")

    def close(self) -> None:
        self._context.close()
        assert self.wrong == []


@pytest.fixture(scope="module")
def console(workers: Workers) -> Iterator[str]:
    """The address of a console whose users may do all; its token is used up by `windows`."""
    with served(workers.url, "--allow", "all") as address:
        yield address


@pytest.fixture(scope="module")
def logged_in(browser: Browser, console: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The address behind the login, and the cookies of the browser that has used the token."""
    cookies = tmp_path_factory.mktemp("profile") / "cookies.json"
    context = browser.new_context()
    page = context.new_page()
    page.goto(console)
    expect(page.get_by_role("heading", name="Overview", exact=True)).to_be_visible()
    context.storage_state(path=cookies)
    page.goto(console)
    expect(page.locator("body")).to_contain_text("was used")  # a second time
    context.close()
    return re.sub(r"/login\?.*", "/", console), cookies


@pytest.fixture
def open_windows(browser: Browser, logged_in: tuple[str, Path]) -> Iterator[Callable[..., Windows]]:
    address, cookies = logged_in
    with ExitStack() as stack:

        def opened(**options: Any) -> Windows:
            windows = Windows(browser, address, storage_state=cookies, **options)
            stack.callback(windows.close)
            return windows

        yield opened


def with_client(workers: Workers, work: Callable[[Client], Awaitable[T]]) -> T:
    async def run() -> T:
        async with Client(workers.url) as client:
            return await work(client)

    with ThreadPoolExecutor(1) as thread:  # the browser's loop is on this one
        return thread.submit(anyio.run, run).result()


def use(workers: Workers, instance_id: str, session: str) -> str:
    """Run an activity on a session; returns the worker that holds it."""

    async def run(client: Client) -> str:
        await (await client.start(shows, "tea", instance_id=instance_id, session_id=session)).wait(PATIENCE)
        now = (await client.session_life(session)).now
        assert now is not None
        return now.worker_id

    return with_client(workers, run)


def say(workers: Workers, conversation_id: str, text: str) -> None:
    with_client(workers, lambda client: client.conversation(chats, conversation_id).send(UserMessage(text)))


def test_the_strip_shows_a_move(workers: Workers, open_windows: Callable[..., Windows]) -> None:
    """Within two seconds of the takeover, in a page that is open: the second bar, its reason and its gap."""
    holder = use(workers, "before", "s")
    page = open_windows().open("/session?id=s")
    expect(page.locator("svg.strip rect")).to_have_count(1)
    expect(page.locator("#live")).to_have_text("live")
    next(one for one in workers.running() if one.name == holder).send(signal.SIGKILL)
    successor = use(workers, "after", "s")
    assert successor != holder
    expect(page.locator("svg.strip rect")).to_have_count(2, timeout=2 * SECOND)
    expect(page.locator(".sentence")).to_contain_text(f"is held by worker '{successor}'")
    newest = page.locator("table").first.locator("tbody tr").first
    expect(newest).to_contain_text("lease_expired")
    expect(newest).to_contain_text(" ms")
    workers.start(f"{holder}-again", APP)


def test_an_approval_disappears_in_the_other_window(workers: Workers, open_windows: Callable[..., Windows]) -> None:
    say(workers, "wants", "please")
    windows = open_windows()
    one, two = windows.open("/approvals?prefix=wants"), windows.open("/approvals?prefix=wants")
    for page in (one, two):
        expect(page.get_by_role("button", name="Allow")).to_be_visible()
    one.get_by_label("Reason").fill("fine")
    one.get_by_role("button", name="Allow").click()
    for page in (one, two):
        expect(page.locator("main")).to_contain_text("Nothing waits for an answer", timeout=5 * SECOND)
    transcript = windows.open("/conversation?id=wants").locator(".transcript")
    expect(transcript).to_contain_text("allowed: True, fine")


def test_what_is_typed_is_not_lost_when_the_page_renews(workers: Workers, open_windows: Callable[..., Windows]) -> None:
    say(workers, "first", "please")
    page = open_windows().open("/approvals")
    expect(page.locator("#live")).to_have_text("live")
    field = page.locator("article", has_text="first").get_by_label("Reason")
    field.fill("because of this")
    say(workers, "second", "please")
    waits = open_windows().open("/approvals")
    expect(waits.locator("article", has_text="second")).to_be_visible(timeout=5 * SECOND)
    expect(field).to_have_value("because of this")


def test_a_stream_is_read_while_it_is_made(workers: Workers, open_windows: Callable[..., Windows]) -> None:
    say(workers, "speaks", "please")
    page = open_windows().open("/conversation?id=speaks")
    expect(page.locator("#live")).to_have_text("live")
    say(workers, "speaks", "slowly " + " ".join(f"word{n}" for n in range(40)))
    expect(page.locator(".provisional")).to_contain_text("word3", timeout=8 * SECOND)
    expect(page.locator(".provisional")).to_have_count(0, timeout=20 * SECOND)
    expect(page.locator(".transcript")).to_contain_text("said")


def test_a_fork_is_made_at_an_entry(workers: Workers, open_windows: Callable[..., Windows]) -> None:
    say(workers, "origin", "please")
    page = open_windows().open("/conversation?id=origin")
    expect(page.locator(".transcript li.agent").first).to_be_visible(timeout=5 * SECOND)
    page.locator("#fork summary").click()
    page.get_by_label("Id of the new conversation").fill("copy")
    page.get_by_label("Up to entry").fill("1")
    page.locator("#fork").get_by_role("button", name="Fork").click()
    expect(page.locator("dl")).to_contain_text("copy, of kind chat")
    expect(page.locator("dl").get_by_role("link", name="origin")).to_be_visible()
    expect(page.locator(".transcript li.user")).to_have_count(1)


def test_stored_text_runs_nothing(workers: Workers, open_windows: Callable[..., Windows]) -> None:
    """`Windows` fails on a dialog, an error, and each violation of the policy of the pages."""
    text = "<script>alert(1)</script><img src=x onerror=alert(2)><svg onload=alert(3)>"
    say(workers, "hostile", text)
    windows = open_windows()
    page = windows.open("/conversation?id=hostile")
    expect(page.locator(".transcript .user pre")).to_have_text(text)
    for path in ("/", "/approvals", "/instance?id=hostile", "/session?id=hostile", "/conversations"):
        expect(windows.open(path).locator("#live")).to_have_text("live")


def test_without_scripts(workers: Workers, open_windows: Callable[..., Windows]) -> None:
    """Pages are read, and requests are answered."""
    say(workers, "quiet", "please")
    windows = open_windows(java_script_enabled=False)
    for path in ("/", "/workers", "/sessions", "/instances", "/conversations", "/session?id=quiet"):
        page = windows.open(path)
        expect(page.locator("main h1")).to_be_visible()
    page = windows.open("/approvals?prefix=quiet")
    expect(page.locator("time").first).to_contain_text("UTC")
    page.get_by_role("button", name="Refuse").click()
    expect(page.locator("main")).to_contain_text("Nothing waits for an answer")


def test_a_console_that_only_reads(workers: Workers, browser: Browser) -> None:
    """It has no forms, and its endpoints refuse."""
    say(workers, "locked", "please")
    with served(workers.url) as address:
        windows = Windows(browser, address)
        page = windows.open("/approvals?prefix=locked")
        expect(page.locator("article")).to_be_visible()
        assert page.locator("form[method=post]").count() == 0
        status = page.evaluate("fetch('do/answer', {method: 'POST', body: 'conversation=locked'}).then(r => r.status)")
        assert status == 403
        windows.wrong.clear()  # the browser logs the refusal
        windows.close()


def test_a_phone_in_the_dark(workers: Workers, open_windows: Callable[..., Windows]) -> None:
    """Nothing is wider than the screen, and the page has a dark background."""
    windows = open_windows(viewport={"width": 360, "height": 740}, color_scheme="dark")
    for path in ("/", "/instances", "/sessions", "/workers", "/conversations", "/approvals"):
        page = windows.open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 22, 22)"
