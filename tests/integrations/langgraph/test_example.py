"""The example: the same agent, plain and durable."""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.forked_programs import Fork, run_program

EXAMPLES: Final = Path(__file__).parents[3] / "examples" / "integrations"

MOST: Final = 5
"""Lines that a newcomer changes or adds."""


def agent(name: str) -> list[str]:
    """The lines of an agent, without those of its caller and without imports that its caller alone needs."""
    text = (EXAMPLES / f"{name}.py").read_text()
    lines, caller = text.split("async def main", 1)
    names = {word for word in re.findall(r"\w+", caller) if not re.search(rf"\b{word}\b", lines.split("\n\n\n", 1)[1])}
    kept = []
    for line in filter(str.strip, lines.splitlines()):
        source, _, imported = line.partition(" import ")
        rest = [each for each in imported.split(", ") if each not in names]
        if imported and line.startswith("from "):
            kept += [f"{source} import {', '.join(rest)}"] if rest else []
        else:
            kept.append(line)
    return kept


def test_a_plain_agent_becomes_durable_by_five_lines() -> None:
    changes = [*difflib.ndiff(agent("langgraph_plain"), agent("langgraph_durable"))]
    assert 0 < len([line for line in changes if line.startswith("+ ")]) <= MOST
    assert len([line for line in changes if line.startswith("- ")]) <= MOST


def test_the_plain_one_runs(tmp_path: Path) -> None:
    """tests/examples/test_snippets.py runs the durable one, which a page shows: it prints the same."""
    printed = Fork(run_program, str(EXAMPLES / "langgraph_plain.py"), folder=tmp_path).output()
    assert printed == "{'may I': 'refund', 'cents': 5000}\nDone: 5000 cents are on their way.\n"


def test_without_the_extra_the_error_names_it() -> None:
    program = "import sys; sys.modules['langgraph'] = None; import affinity.integrations.langgraph"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=100)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: affinity.integrations.langgraph needs LangGraph: pip install 'affinity-workflows[langgraph]'"
    )
