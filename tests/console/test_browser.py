"""The console in a real browser, beside three worker processes of which one is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
import pytest
import uvicorn
from playwright.sync_api import Browser, ConsoleMessage, Page, expect
from starlette.applications import Starlette
from starlette.routing import Mount

from affinity import Client
from affinity.console import ALL, Access, create
from affinity.conversation import UserMessage
from affinity.errors import OrchestrationFailed
from tests.servers import old_and_new
from tests.support.chromium import MARKS, open_browser
from tests.support.console_app import chats, needs, shows, spoils, varied
from tests.support.limits import stage
from tests.support.worker_processes import PATIENCE, ROOT, Workers, open_workers

T = TypeVar("T")

SECOND: Final = 1_000.0
APP: Final = "tests.support.console_app:app"

pytestmark = MARKS


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


@contextmanager
def mounted(url: str, prefix: str) -> Iterator[str]:
    """The address of a console whose users may do all, below a prefix of another application."""
    console = create(url, access=lambda request: Access(ALL, "ann"))
    app = Starlette(routes=[Mount(prefix, app=console)], lifespan=console.lifespan)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, args=([listener],))  # it accepts what waits
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}{prefix}/"
        finally:
            server.should_exit = True
            thread.join(PATIENCE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


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
        await (await client.start(shows, "tea", instance_id=instance_id, for_session=session)).wait(PATIENCE)
        now = (await client.session_life(session)).now
        assert now is not None
        return now.worker_id

    return with_client(workers, run)


async def ended(client: Client) -> None:
    with pytest.raises(OrchestrationFailed):
        await client.wait("spoilt-on-a-phone", PATIENCE)


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
    expect(newest).to_contain_text("lease expired")
    expect(newest).to_contain_text(" ms")
    workers.start(f"{holder}-again", APP)


def test_the_fleet_and_what_a_drain_moves(workers: Workers, open_windows: Callable[..., Windows]) -> None:
    """The overview names what no worker can take and counts the moves; a drain says what it moves, and moves it."""
    holder = use(workers, "of-fleet", "fleet")
    with_client(workers, lambda client: client.start(needs, "gpu", instance_id="tagged"))
    windows = open_windows()
    overview = windows.open("/")
    expect(overview.locator(".needs")).to_contain_text("has the tag 'gpu': start one with `--tag gpu`")
    expect(overview.locator("svg.moves rect").first).to_be_attached()
    overview.get_by_role("link", name="Workers").first.click()
    page = windows.open("/workers")
    row = page.locator("tbody tr", has_text=holder).first
    expect(row).to_contain_text("alive")
    row.get_by_role("link", name="Preview a drain").click()
    expect(page.locator(".sentence")).to_contain_text(f"worker '{holder}' holds ")
    expect(page.locator(".sentence")).to_contain_text("they take each session with its next work")
    expect(page.locator("table").last).to_contain_text("fleet")
    page.get_by_label("To confirm, type its name").fill(holder)
    page.get_by_role("button", name="Drain").click()
    expect(page.locator("h1")).to_contain_text("draining", timeout=5 * SECOND)
    expect(page.locator(".sentence")).to_contain_text("holds no sessions", timeout=10 * SECOND)
    assert use(workers, "of-fleet-again", "fleet") != holder
    page.get_by_role("button", name="End the drain").click()
    expect(page.locator("h1")).to_contain_text("alive", timeout=5 * SECOND)


def test_sessions_are_moved_released_exported_and_deleted(
    workers: Workers, open_windows: Callable[..., Windows]
) -> None:
    """The map has a cell for each session; what is done to one in the list is seen there and on its own page."""
    holder = use(workers, "of-map", "map")
    other = next(one.name for one in workers.running() if one.name != holder)
    page = open_windows().open("/sessions")
    row = page.locator("form.rows tbody tr").filter(has=page.get_by_role("link", name="map", exact=True))
    expect(row).to_contain_text(holder)
    expect(page.locator(".map tr", has_text=holder).locator("a.cell[aria-label=map]")).to_be_visible()
    row.get_by_role("radio").check()
    page.locator("select[name=to]").select_option(other)
    page.get_by_role("button", name="Move", exact=True).click()
    expect(row).to_contain_text(other, timeout=5 * SECOND)
    row.get_by_role("link", name="map", exact=True).click()
    expect(page.locator("dl").first).to_contain_text("note")
    expect(page.locator("pre")).to_contain_text("tea")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export").click()
    assert json.loads(download.value.path().read_text())["state"] == {"text": "tea"}
    page.go_back()
    row.get_by_role("radio").check()
    page.get_by_label("To delete its record").fill("map")
    page.get_by_role("button", name="Delete its record").click()
    expect(page.locator("h1")).to_have_text("Sessions")
    page.goto(page.url.partition("/sessions")[0] + "/records?prefix=map")
    expect(page.locator("tbody")).to_contain_text("No record")


def test_under_a_prefix(workers: Workers, browser: Browser) -> None:
    """Mounted in another application: pages renew, and an action leads back to its page, all below the prefix."""
    with_client(workers, lambda client: client.schedules.create("hourly", "shows", every=3600))
    with mounted(workers.url, "/ops") as address:
        windows = Windows(browser, address)
        page = windows.open("/schedules")
        expect(page.locator("#live")).to_have_text("live")
        row = page.locator("tbody tr", has_text="hourly")
        expect(row).to_contain_text("schedule 'hourly' ticks next at")
        row.get_by_role("button", name="Pause").click()
        assert page.url == f"{windows.base}/schedules"
        expect(row).to_contain_text("is paused")
        expect(page.locator("#live")).to_have_text("live")
        with_client(workers, lambda client: client.schedules.resume("hourly"))
        expect(row).to_contain_text("ticks next at", timeout=5 * SECOND)
        for link in page.locator("a[href], link[href], script[src]").all():
            assert (link.get_attribute("href") or link.get_attribute("src") or "").startswith(("/ops/", "#"))
        windows.close()


def test_a_limit_is_changed_and_others_see_it(workers: Workers, open_windows: Callable[..., Windows]) -> None:
    """In the list and on its page, which renew by themselves."""
    with_client(workers, lambda client: stage(client._provider))
    windows = open_windows()
    page, other = windows.open("/limits"), windows.open("/limit?name=tenant")
    row = page.locator("tbody tr", has_text="model")
    row.get_by_role("button", name="Pause").click()
    expect(row.locator(".status")).to_have_text("paused")
    with_client(workers, lambda client: client.limits.resume("model", ramp=0.01))
    expect(row).to_contain_text("0.01 slots more each second", timeout=5 * SECOND)
    page.get_by_role("link", name="tenant").click()
    page.get_by_label("Of this key").fill("acme")
    page.get_by_label("Slots, or none").fill("7")
    page.get_by_role("button", name="Change", exact=True).click()
    acme = page.locator("tbody tr", has_text="acme")
    expect(acme).to_contain_text("7 changed")
    expect(other.locator("tbody tr", has_text="acme")).to_contain_text("7 changed", timeout=5 * SECOND)
    acme.get_by_role("button", name="Pause").click()
    expect(acme.locator(".status")).to_have_text("paused")
    acme.get_by_role("button", name="Take back its changes").click()
    expect(acme.locator(".status")).to_have_text("open")
    expect(acme).not_to_contain_text("changed")


def test_an_approval_disappears_in_the_other_window(workers: Workers, open_windows: Callable[..., Windows]) -> None:
    say(workers, "wants", "please")
    windows = open_windows()
    audit = windows.open("/audit?target=wants")
    one, two = windows.open("/approvals?prefix=wants"), windows.open("/approvals?prefix=wants")
    for page in (one, two):
        expect(page.get_by_role("button", name="Allow")).to_be_visible()
    one.get_by_label("Reason").fill("fine")
    one.get_by_role("button", name="Allow").click()
    for page in (one, two):
        expect(page.locator("main")).to_contain_text("Nothing waits for an answer", timeout=5 * SECOND)
    say(workers, "measures", "ask in other ways")
    one.goto(f"{windows.base}/approvals?kind=agent.custom_tool_use")
    one.get_by_label("Result").fill('{"degrees": 80}')
    one.get_by_role("button", name="Give the result").click()
    measured = windows.open("/conversation?id=measures").locator(".transcript")
    expect(measured).to_contain_text("measured: {'degrees': 80}", timeout=5 * SECOND)
    transcript = windows.open("/conversation?id=wants").locator(".transcript")
    expect(transcript).to_contain_text("allowed: True, fine")
    entry = audit.locator("tbody tr").first
    expect(entry).to_contain_text("answer", timeout=5 * SECOND)
    expect(entry).to_contain_text("reason: fine")


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
    banner = page.locator("#stale")
    expect(banner).to_contain_text("A form is being edited, so this page is not renewed. What is shown is from")
    expect(page.locator("article", has_text="second")).to_have_count(0)
    banner.get_by_role("button").click()
    expect(page.locator("article", has_text="second")).to_be_visible()
    expect(banner).to_be_hidden()
    expect(page.locator("#live")).to_have_text("live")


def test_a_stream_is_read_while_it_is_made(workers: Workers, open_windows: Callable[..., Windows]) -> None:
    """Word by word; what a failed attempt has said is struck out, until the next attempt speaks."""
    say(workers, "speaks", "please")
    page = open_windows().open("/conversation?id=speaks")
    expect(page.locator("#live")).to_have_text("live")
    page.evaluate(
        """() => {
            window.texts = new Set();
            new MutationObserver(() => window.texts.add(document.querySelector("#streamed pre")?.textContent))
                .observe(document.body, { childList: true, subtree: true, characterData: true });
        }"""
    )
    say(workers, "speaks", "slowly breaks " + " ".join(f"word{n}" for n in range(18)))
    expect(page.locator(".provisional .said")).to_be_visible(timeout=8 * SECOND)
    expect(page.locator("#streamed pre")).to_contain_text("word3", timeout=8 * SECOND)
    expect(page.locator(".retracted .void")).to_be_visible(timeout=20 * SECOND)
    expect(page.locator("#streamed")).to_have_count(0, timeout=20 * SECOND)
    expect(page.locator(".transcript")).to_contain_text("said")
    # 20 words in 4 seconds: a page that renews itself once a second has shown about 4 of these texts.
    assert page.evaluate("window.texts.size") > 12


def test_a_conversation_with_its_wakes_and_forks(workers: Workers, open_windows: Callable[..., Windows]) -> None:
    """Calls of tools, later wakes, the trace of a wake, the filter of the list; a fork at an entry, and the tree."""
    say(workers, "origin", "use a tool")
    windows = open_windows()
    page = windows.open("/conversations?status=waiting&prefix=orig")
    page.get_by_role("link", name="origin").click()
    call = page.locator(".transcript li", has_text="agent.tool_use")
    expect(call.locator("pre").first).to_be_hidden()
    call.locator("summary").click()
    expect(call.locator("summary")).to_have_text("boil litres: 2 → degrees: 100")
    expect(call.locator("pre").first).to_contain_text('"litres": 2')
    expect(call.locator("pre").last).to_contain_text('"degrees": 100')
    expect(page.locator("table", has_text="drink it")).to_be_visible()
    trace = windows.open("/" + (call.get_by_role("link", name="wake").first.get_attribute("href") or "").lstrip("/"))
    expect(trace.locator("table").first).to_contain_text("done")
    expect(trace.locator(".gantt rect.run")).to_have_count(1)
    expect(trace.locator(".transcript")).to_contain_text('"litres": 2')
    page.locator("#s-1").get_by_role("link", name="fork here").click()
    page.get_by_label("Id of the new conversation").fill("copy")
    expect(page.get_by_label("Up to entry")).to_have_value("1")
    page.locator("#fork").get_by_role("button", name="Fork").click()
    expect(page.locator("dl")).to_contain_text("copy, of kind chat")
    expect(page.locator(".tree")).to_contain_text("fork up to 1")
    expect(page.locator(".transcript li.user")).to_have_count(1)
    page.locator(".tree").get_by_role("link", name="origin").click()
    expect(page.locator(".tree").get_by_role("link", name="copy")).to_be_visible()
    page.get_by_label("Message").fill("and now?")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator(".transcript li.agent pre", has_text="and now?").first).to_be_visible()
    page.locator("#interrupt summary").click()
    page.locator("#interrupt").get_by_label("Reason").fill("enough")
    page.locator("#interrupt").get_by_role("button").click()
    expect(page.locator(".transcript")).to_contain_text("enough")
    page.locator("#terminate summary").click()
    page.get_by_label("To confirm").fill("origin")
    page.locator("#terminate").get_by_role("button").click()
    expect(page.locator("h1 .status")).to_have_text("terminated", timeout=10 * SECOND)


def test_an_instance(workers: Workers, open_windows: Callable[..., Windows]) -> None:
    """Found by its version; its time axis with waits, runs in the colours of workers, a timer, a child and idle time;
    only its failures; a reset with a preview, without a script.
    """
    with_client(workers, lambda client: client.start(varied, "no", instance_id="varied"))
    windows = open_windows()
    page = windows.open("/instances?name=varied&version=1.0.0&status=running&since=2020-01-01T00:00&prefix=var")
    page.get_by_role("link", name="varied").click()
    expect(page.locator(".sentence")).to_contain_text("waits for the event 'go'", timeout=10 * SECOND)
    row = page.locator(".gantt tr", has_text="flaky")
    expect(row.locator("rect.queued")).to_have_count(1)
    color = re.search(r"w\d", row.locator(".worker").get_attribute("class") or "")
    assert color is not None
    expect(row.locator(f"rect.run.{color[0]}")).to_have_count(1)
    expect(row.locator("rect.run title")).to_contain_text("ran 0.")
    expect(page.locator(".gantt tr", has_text="timer of 0.1 s")).to_contain_text("fired")
    expect(page.locator(".gantt rect.event")).to_have_count(1)
    expect(page.locator("rect.fold title").first).to_contain_text("idle", timeout=15 * SECOND)
    page.get_by_role("link", name="Show only what has failed").click()
    expect(page).to_have_url(re.compile("failures=yes"))
    expect(page.locator(".gantt tbody tr")).to_have_count(1)
    expect(page.locator(".gantt tbody tr")).to_contain_text("failed")
    expect(page.locator("table", has_text="Fields").locator("tbody tr")).to_contain_text("sub_orchestration_failed")
    plain = open_windows(java_script_enabled=False).open("/instance?id=varied")
    plain.locator("#reset summary").click()
    plain.get_by_role("button", name="Show what it would do").click()
    expect(plain.locator(".sentence")).to_contain_text("Execution 2 begins with the events 1 to ")
    plain.goto(page.url.split("/instance?")[0] + "/reset?id=varied&event=2")
    expect(plain.locator(".sentence")).to_contain_text("Execution 2 begins with the events 1 to 2")
    expect(plain.locator("dd").first).to_have_text("flaky")
    expect(plain.locator("table tbody tr").first).to_contain_text("activity_completed")
    plain.get_by_label("To confirm").fill("varied")
    plain.get_by_role("button", name="Reset").click()
    expect(plain.locator("dl")).to_contain_text("2, ")
    plain.goto(page.url.split("/instance?")[0] + "/instances?prefix=varied&name=varied")
    plain.get_by_role("link", name="Count what could be cancelled").click()
    plain.get_by_text("Cancel 1").click()
    plain.get_by_label("To confirm").fill("1")
    plain.get_by_role("button", name="Cancel", exact=True).click()
    expect(plain.locator("h1")).to_have_text("Instances")
    expect(page.locator("h1 .status")).to_have_text("cancelled", timeout=10 * SECOND)


def test_stored_text_runs_nothing(workers: Workers, open_windows: Callable[..., Windows]) -> None:
    """`Windows` fails on a dialog, an error, and each violation of the policy of the pages."""
    text = "<script>alert(1)</script><img src=x onerror=alert(2)><svg onload=alert(3)>"
    say(workers, "hostile", text)
    windows = open_windows()
    page = windows.open("/conversation?id=hostile")
    expect(page.locator(".transcript .user pre")).to_have_text(text)
    for path in ("/", "/approvals", "/instance?id=hostile", "/session?id=hostile", "/conversations", "/audit"):
        page = windows.open(path)
        expect(page.locator("#live")).to_have_text("live")
        page.close()  # a browser keeps six connections to a server at most


def test_without_scripts(workers: Workers, open_windows: Callable[..., Windows]) -> None:
    """Pages are read, and requests are answered."""
    say(workers, "quiet", "please")
    windows = open_windows(java_script_enabled=False)
    paths = ("/", "/workers", "/drain?worker=two", "/sessions", "/schedules", "/instances", "/session?id=quiet")
    for path in (*paths, "/limits", "/conversations", "/audit"):
        page = windows.open(path)
        expect(page.locator("main h1")).to_be_visible()
        expect(page.locator("#live")).to_contain_text(re.compile(r"as it was \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"))
    page = windows.open("/approvals?prefix=quiet")
    expect(page.locator("time").first).to_contain_text("UTC")
    page.locator("article h3 a").click()  # the address of the one request
    expect(page.locator("h1")).to_contain_text("Request")
    expect(page.locator(".quote")).to_contain_text("please")
    page.get_by_role("button", name="Refuse").click()
    expect(page.locator("main")).to_contain_text("It does not wait for an answer")


def test_lists_answer_on_a_phone(workers: Workers, open_windows: Callable[..., Windows]) -> None:
    """The status and the error of each failed instance are in sight, on low rows; the menu opens without a script."""
    with_client(
        workers, lambda client: client.start(spoils, "the card was declined " * 9, instance_id="spoilt-on-a-phone")
    )
    with_client(workers, ended)
    windows = open_windows(viewport={"width": 390, "height": 844}, java_script_enabled=False)
    page = windows.open("/instances?status=failed&prefix=spoilt")
    row = page.locator("tbody tr", has_text="spoilt-on-a-phone")
    for part in (row.locator(".status"), row.locator("td.error")):
        box = part.bounding_box()
        assert box is not None
        assert 0 <= box["x"] <= box["x"] + box["width"] <= 390
        assert box["y"] + box["height"] <= 844
    box = row.bounding_box()
    assert box is not None
    assert box["height"] < 110
    expect(page.locator("#nav")).to_be_hidden()
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Workers").click()
    expect(page.locator("h1")).to_have_text("Workers")


def test_a_dangerous_request_needs_a_second_look(workers: Workers, open_windows: Callable[..., Windows]) -> None:
    """The card has the words of the application and of the user; Allow does nothing before the box is ticked."""
    say(workers, "danger", "dangerously refund me")
    windows = open_windows(viewport={"width": 390, "height": 844})
    page = windows.open("/approvals?prefix=danger")
    card = page.locator("article")
    expect(card.locator("h3")).to_have_text("Refund")
    expect(card.locator(".summary")).to_have_text("Refund 49.90 € to Mara")
    expect(card.locator(".quote")).to_contain_text("dangerously refund me")
    expect(card.locator("time.clock")).to_contain_text("(in ")
    expect(card.locator("pre")).to_be_hidden()
    refuse, allow = (card.get_by_role("button", name=name).bounding_box() for name in ("Refuse", "Allow"))
    assert refuse is not None
    assert allow is not None
    assert refuse["x"] + refuse["width"] + 40 < allow["x"]
    assert min(refuse["height"], allow["height"]) >= 44
    card.get_by_role("button", name="Allow").click()
    expect(card).to_be_visible()
    card.get_by_role("checkbox").check()
    card.get_by_role("button", name="Allow").click()
    expect(page.locator("main")).to_contain_text("Nothing waits for an answer", timeout=5 * SECOND)


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
    say(workers, "phone", "use a tool")
    with_client(workers, lambda client: stage(client._provider))
    lists = ("/", "/instances", "/sessions", "/workers", "/schedules", "/conversations", "/approvals", "/audit")
    paths = (
        *lists,
        "/limits",
        "/limit?name=tenant",
        "/instance?id=phone",
        "/conversation?id=phone",
        "/reset?id=phone&event=1",
    )
    for path in (*paths, "/limits", "/limit?name=tenant"):
        page = windows.open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(13, 16, 21)"
        page.close()  # a browser keeps six connections to a server at most


def test_a_database_that_stops_and_comes_back(browser: Browser) -> None:
    """Pages say how old they are, and go on by themselves; so does a page that was loaded meanwhile. Of two workers,
    one is killed while the database is away.
    """
    with ExitStack() as stack:
        server = stack.enter_context(old_and_new()[1].open())
        url = server.url(server.create_database())
        subprocess.run([sys.executable, "-m", "affinity", "migrate", "--url", url], check=True, cwd=ROOT)
        workers, address = stack.enter_context(open_workers(url)), stack.enter_context(served(url))
        killed, stays = (workers.start(name, APP) for name in ("killed", "stays"))
        windows = Windows(browser, address)
        page = windows.open("/workers")
        banner, rows = page.locator("#stale"), page.locator("table").first.locator("tbody tr")
        expect(page.locator("#live")).to_have_text("live")
        expect(rows.filter(has_text="killed").locator(".status")).to_have_text("alive")
        expect(banner).to_be_hidden()
        server.stop("immediate")
        expect(banner).to_contain_text("The database does not answer.", timeout=8 * SECOND)
        expect(banner).to_contain_text("What is shown is from")
        expect(page.locator("#live")).to_have_text("not live")
        killed.send(signal.SIGKILL)
        first = banner.text_content()
        expect(banner).not_to_have_text(first or "", timeout=5 * SECOND)  # its age grows
        other = windows.open("/workers")
        expect(other.locator("h1")).to_have_text("503", timeout=60 * SECOND)
        server.start()
        expect(banner).to_be_hidden(timeout=40 * SECOND)
        expect(page.locator("#live")).to_have_text("live")
        expect(rows.filter(has_text="killed").locator(".status")).to_have_text("ended", timeout=40 * SECOND)
        expect(rows.filter(has_text="stays").locator(".status")).to_have_text("alive", timeout=40 * SECOND)
        expect(other.locator("h1")).to_have_text("Workers", timeout=40 * SECOND)
        assert stays.is_running
        windows.wrong.clear()  # the browser logs the status 503
        windows.close()
