"""The examples run, each in a process of its own on a fresh SQLite file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.forked_programs import Fork, run_program

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

SHOWS = {
    "hello": ["hello Ada", "hello Grace", "hello Barbara", "epoch"],
    "chat": ["worker-a (epoch", "worker-b (epoch", "hydrated with 3 turns", "6 turns in 3 executions"],
    "unknown_session": ["worker-b loads the basket of ada", "['tea', 'milk', 'sugar']"],
    "fan_out": ["3140 of 50000"],
}
"""A part of the output of each example."""

HYDRATIONS = {"chat": ("hydrated", 2), "unknown_session": ("loads the basket", 2)}
"""Once for each holder: state that is still in memory is not loaded again."""


def test_every_example_is_known_here() -> None:
    assert {path.stem for path in EXAMPLES} == set(SHOWS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    printed = Fork(run_program, str(path), folder=tmp_path).output()
    missing = [text for text in SHOWS[path.stem] if text not in printed]
    assert not missing, printed
    word, times = HYDRATIONS.get(path.stem, ("", len(printed) + 1))
    assert printed.count(word) == times, printed
    assert not list(tmp_path.iterdir()), "an example leaves nothing in the working directory"


def test_the_first_orchestration_of_the_readme_is_the_first_example() -> None:
    """What a newcomer copies from the README is what runs here, but for blank lines and the file that it keeps."""
    block = re.search(r"\n\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    program, example = (
        "\n".join(filter(str.strip, text.splitlines()))
        for text in (block[1].rsplit("\nif __name__", 1)[0], (ROOT / "examples" / "hello.py").read_text())
    )
    assert program in example
