"""The drawings of the README and the index: docs/pictures.py makes them, and their commands are the README's."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from affinity.init.project import Project

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pictures"] = module  # its dataclass looks there
    spec.loader.exec_module(module)
    return module


def texts(name: str) -> list[str]:
    """The lines of a drawing, which are all in it before it moves."""
    svg = ElementTree.parse(ROOT / "docs" / name)  # noqa: S314 -- ours
    return ["".join(each.itertext()) for each in svg.iter("{http://www.w3.org/2000/svg}text")]


def test_the_diagram_is_as_the_command_makes_it(pictures: ModuleType) -> None:
    assert (ROOT / "docs" / "moves.svg").read_text() == pictures.diagram()


def test_the_commands_are_those_of_the_readme_and_of_init(pictures: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```sh\n(?:cd chat && )?(affinity .*)\n```", readme)
    assert tuple(blocks[:3]) == pictures.COMMANDS
    assert pictures.COMMANDS[1:] == Project("chat", "chat").commands[1:]


def test_the_recording_shows_a_kill_in_the_middle_of_an_answer(pictures: ModuleType) -> None:
    """The order on the page is that of the terminals; the order in time is in the delays."""
    lines = texts("first-hour.svg")
    assert {f"$ {command}" for command in (*pictures.COMMANDS, pictures.AGAIN)} < {*lines}
    svg = (ROOT / "docs" / "first-hour.svg").read_text()
    at = {text: float(delay) for delay, text in re.findall(r'delay:([\d.]+)s"[^>]*>([^<]+)<', svg)}
    asked, answered = (
        at["$ affinity conversation ask ann 'still there?' --kind chat"],
        next(when for text, when in at.items() if text.startswith("This is answer 2.")),
    )
    assert asked < at["▶ Kill the worker, pressed in the console"] < answered
    assert at["dev: the worker was killed: another one starts"] < answered


def test_a_recording_is_drawn_without_long_pauses_and_secrets(pictures: ModuleType) -> None:
    recording = pictures.Recording(
        [
            (0.0, 0, "typed", "$ affinity dev"),
            (30.0, 0, "said", "dev: the console: http://127.0.0.1:1/login?token=secret"),
            (31.0, 1, "said", "This is answer 2. <&>" + "x" * 200),
        ]
    )
    svg = pictures.draw(recording)
    assert "secret" not in svg
    assert "This is answer 2. &lt;&amp;&gt;" in svg
    assert [float(each) for each in re.findall(r"delay:([\d.]+)s", svg)] == [0.5, 2.5, 3.5]
    assert max(len("".join(each.itertext())) for each in ElementTree.fromstring(svg)[3:]) <= pictures.COLUMNS  # noqa: S314
