"""The style sheet keeps what docs/understand/console-design.md promises: contrasts, sizes, words of numbers."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final

import pytest

from affinity import Client, Start
from affinity.console.pages.base import ROWS, Waiting
from affinity.console.pages.instances import MAX_WAITING
from affinity.console.rendering import counted, middle, static_file
from affinity.conversation import UserMessage
from tests.console.conftest import Open
from tests.support.console_app import chats
from tests.support.waiting import until

THEMES: Final = ("light", "dark")
GROUNDS: Final = ("page", "surface", "raised")
STATES: Final = ("good", "warn", "bad", "calm")

PAIRS: Final = [
    *(("text", ground, 7.0) for ground in GROUNDS),
    *((name, ground, 4.5) for name in ("dim", "accent") for ground in GROUNDS),
    ("accent", "accent-soft", 4.5),
    ("text", "accent-soft", 4.5),
    ("on-accent", "accent", 4.5),
    ("on-accent", "good", 4.5),
    *((name, "surface", 4.5) for name in STATES),
    *((name, f"{name}-soft", 4.5) for name in STATES),
    *(("edge", ground, 3.0) for ground in GROUNDS),
    *((f"w{number}", "surface", 3.0) for number in range(12)),
]
"""Foreground, ground, and the least contrast: WCAG 2.2, 1.4.3 for text and 1.4.11 for what else carries meaning."""

MAX_BYTES: Final = 120_000


@cache
def style() -> str:
    return (files("affinity.console") / "static" / "console.css").read_text(encoding="utf-8")


@cache
def colors() -> dict[str, tuple[str, str]]:
    """Each colour token, and those of workers, with its value in light and in dark."""
    two = r"light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)"
    tokens = {name: (light, dark) for name, light, dark in re.findall(rf"--([\w-]+): {two}", style()) if name != "w"}
    of_workers = re.findall(rf"\.(w\d+) {{ --w: {two}", style())
    return tokens | {name: (light, dark) for name, light, dark in of_workers}


def luminance(color: str) -> float:
    """Relative luminance, as WCAG defines it."""
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_the_measure_of_contrast() -> None:
    """Against figures of the standard's own examples."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)
    assert contrast("#777777", "#ffffff") < 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("name", "ground", "least"), PAIRS)
def test_colors_can_be_told_apart(name: str, ground: str, least: float, theme: str) -> None:
    place = THEMES.index(theme)
    assert contrast(colors()[name][place], colors()[ground][place]) >= least


def test_colors_are_tokens() -> None:
    """Each colour has a light and a dark value, and no rule has one of its own."""
    plain = re.sub(r"light-dark\([^)]*\)", "", style())
    assert re.findall(r"#[0-9a-f]{3,8}\b", plain) == ["#0006"]  # the shadow of the menu
    used = set(re.findall(r"var\(--([\w-]+)", style())) - {"w", "k"}
    declared = set(re.findall(r"--([\w-]+):", style()))
    assert used <= declared
    assert declared - {"w", "k"} <= used | {"space-1"}


def test_a_page_moves_only_if_its_reader_wants_motion() -> None:
    calm = style().partition("@media (prefers-reduced-motion: no-preference)")[0]
    assert not re.search(r"transition|animation", calm)


@pytest.mark.parametrize(
    ("number", "most", "text"),
    [
        (0, None, "0 requests wait"),
        (1, None, "1 request waits"),
        (2, None, "2 requests wait"),
        (12_345, None, "12,345 requests wait"),
        (99, 100, "99 requests wait"),
        (100, 100, "100+ requests wait"),
        (1, 1, "1+ requests wait"),
    ],
)
def test_numbers_have_the_right_noun(number: int, most: int | None, text: str) -> None:
    assert counted(number, "request waits", "requests wait", most) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [("short", "short"), ("x" * 40, "x" * 40), ("a" * 30 + "b" * 30, "a" * 20 + "…" + "b" * 19), (None, "")],
)
def test_a_long_id_keeps_both_ends(value: str | None, text: str) -> None:
    assert middle(value) == text
    assert len(text) <= 40


def test_a_count_that_has_stopped_says_so() -> None:
    assert Waiting(99, "", 100).text == "99"
    assert Waiting(100, "", 100).text == "100+"


@pytest.mark.anyio
async def test_the_menu_counts_what_waits(client: Client, open_console: Open) -> None:
    """On each page; nothing beside a page where nothing waits."""

    def badges(page: str) -> dict[str, tuple[str, str]]:
        found = re.findall(r'<a href="([^"]+)"[^>]*>[^<]+<span class="badge" title="([^"]*)">([^<]*)</span></a>', page)
        return {path: (number, title) for path, title, number in found}

    async with open_console() as http:
        assert badges((await http.get("/workers")).text) == {}
        await client.conversation(chats, "talk").ask(UserMessage("please"), timeout=20)
        await client.start("unknown to all", instance_id="lost")

        async def is_suspended() -> bool:
            return (await client.status("lost")).status == "suspended"

        await until(is_suspended)

    async with open_console() as http:
        for path in ("/workers", "/approvals"):
            assert badges((await http.get(path)).text) == {
                "/instances": ("1", "1 instance is suspended"),
                "/approvals": ("1", "1 request waits for an answer"),
            }, path
    assert MAX_WAITING == 100


@pytest.mark.anyio
async def test_a_full_page_is_small(client: Client, open_console: Open) -> None:
    """With all that a browser loads for it."""
    names = [f"order-2026-{n:05}" for n in range(ROWS)]
    await client.start_many([Start("unknown to all", instance_id=name, labels={"tenant": "acme"}) for name in names])
    found = [static_file(name) for name in ("console.css", "console.js", "icon.svg")]
    static = sum(len(file[0]) for file in found if file is not None)
    async with open_console() as http:
        for path in ("/", "/instances", "/sessions", "/workers", "/conversations", "/approvals", "/audit"):
            page = (await http.get(path)).content
            assert len(page) + static < MAX_BYTES, path
