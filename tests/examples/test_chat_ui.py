"""`examples/chat_ui` in a real browser: two worker processes and web processes, which are killed while it streams."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2 as httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.servers.proxy import proxy
from tests.support.chromium import MARKS, open_browser
from tests.support.web import holder_of, serve
from tests.support.worker_processes import PATIENCE, Workers, open_workers

APP = "examples.chat_ui.chat:app"
SERVICE = "examples.chat_ui.service:create_app"
WORDS = " ".join(f"w{number}" for number in range(100))  # five seconds
WHOLE = f"You said: {WORDS}"

WATCH = """
window.seen = [];
new MutationObserver(() => {
  const answers = [...document.querySelectorAll('[data-role=assistant]')];
  window.seen.push(answers.length ? answers.at(-1).textContent.trim() : '');
}).observe(document, { childList: true, subtree: true, characterData: true });
"""
"""Keeps all that the last answer has shown."""

pytestmark = MARKS


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def workers(sqlite_url: str) -> Iterator[Workers]:
    with open_workers(sqlite_url) as found:
        for name in ("one", "two"):
            found.start(name, APP)
        yield found


@pytest.fixture
def http(workers: Workers) -> Iterator[httpx.Client]:
    with serve(SERVICE, workers.url, "/") as found:
        yield found


@pytest.fixture
def page(browser: Browser, http: httpx.Client) -> Iterator[Page]:
    """The page with the chat "ann". An error in it fails the test."""
    context = browser.new_context()
    context.set_default_timeout(PATIENCE * 1000)
    expect.set_options(timeout=PATIENCE * 1000)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.add_init_script(WATCH)
    page.goto(f"{http.base_url}/#ann")
    yield page
    context.close()
    assert wrong == []


def say(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_role("button", name="Send").click()


def answer(page: Page) -> str:
    """The last answer, as it is shown."""
    return (page.locator("[data-role=assistant]").last.text_content() or "").strip()


def kill_holder(workers: Workers) -> None:
    """Kill the worker that gives the answer. On a thread: the browser has the event loop of this one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(holder_of, workers, "ann").result().send(signal.SIGKILL)


def assert_no_word_twice(page: Page) -> None:
    """Each text that the answer has shown is a beginning of it."""
    seen: list[str] = page.evaluate("window.seen")
    assert len(seen) > 5
    assert [text for text in seen if not WHOLE.startswith(text)] == []


def test_an_answer_is_shown_once_though_its_worker_is_killed(page: Page, workers: Workers) -> None:
    say(page, WORDS)
    expect(page.locator("[data-role=assistant]")).to_contain_text("w9 ")
    kill_holder(workers)
    expect(page.locator("[data-role=assistant]")).to_contain_text("w99")
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    assert answer(page) == WHOLE
    assert_no_word_twice(page)
    assert "" in page.evaluate("window.seen.slice(5)")  # what the killed worker had said is gone
    page.reload()
    expect(page.locator("[data-role]")).to_have_count(2)
    assert answer(page) == WHOLE


def test_a_page_that_is_loaded_again_goes_on(page: Page, workers: Workers) -> None:
    say(page, WORDS)
    expect(page.locator("[data-role=assistant]")).to_contain_text("w9 ")
    page.reload()
    expect(page.locator("[data-role=assistant]")).to_contain_text("w12 ")
    kill_holder(workers)
    expect(page.locator("[data-role=assistant]")).to_contain_text("w99")
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    assert answer(page) == WHOLE
    assert_no_word_twice(page)


def test_a_connection_that_breaks_is_made_again(page: Page, http: httpx.Client) -> None:
    places: list[str | None] = []
    page.on("request", lambda request: places.append(request.headers.get("last-event-id")))
    with proxy(str(http.base_url)) as network:
        page.goto(f"{network.url.rstrip('/')}/#bob")
        say(page, WORDS)
        expect(page.locator("[data-role=assistant]")).to_contain_text("w9 ")
        for line in [*network.lines]:
            line.close()
        expect(page.locator("[data-role=assistant]")).to_contain_text("w99")
        expect(page.get_by_role("button", name="Stop")).to_be_disabled()
        assert answer(page) == WHOLE
        assert_no_word_twice(page)
        assert [place for place in places if place]  # it went on behind an event


def test_a_person_allows_one_call_and_refuses_another(page: Page) -> None:
    say(page, "refund 500")
    expect(page.locator(".tool")).to_contain_text("Refund: waits for you")
    expect(page.locator(".tool")).to_contain_text("Pay 5.00 € back")
    page.reload()  # the request waits in the database
    page.get_by_role("button", name="Allow").click()
    expect(page.locator("[data-role=assistant]")).to_contain_text("Done: 500 cents are on their way.")
    expect(page.locator(".tool")).to_contain_text("Refund: done")
    say(page, "refund 700")
    page.get_by_role("button", name="Refuse").click()
    expect(page.locator("[data-role=assistant]").last).to_contain_text("It was not allowed.")
    expect(page.locator(".tool").last).to_contain_text("Refund: refused")


def test_a_fork_goes_on_from_what_was_said(page: Page) -> None:
    say(page, "hello")
    expect(page.locator("[data-role=assistant]")).to_contain_text("You said: hello")
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    page.get_by_role("button", name="Fork").click()
    page.wait_for_url("**/#chat-*")
    expect(page.locator("[data-role=assistant]")).to_contain_text("You said: hello")
    say(page, "more")
    expect(page.locator("[data-role=assistant]").last).to_contain_text("You said: more")
    page.goto(page.url.partition("#")[0] + "#ann")
    expect(page.locator("[data-role]")).to_have_count(2)


def test_an_answer_is_stopped(page: Page) -> None:
    say(page, WORDS)
    expect(page.locator("[data-role=assistant]")).to_contain_text("w9 ")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("[data-role=assistant]")).to_have_text("I stop.")


def test_what_the_page_asks_for_and_is_not_there_is_said(page: Page, http: httpx.Client) -> None:
    page.get_by_role("button", name="Fork").click()
    expect(page.get_by_role("alert")).to_contain_text("no such conversation")
    assert http.post("/forks/none").status_code == 404
