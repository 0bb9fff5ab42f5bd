"""The fenced blocks of README, AGENTS.md and the pages under `docs`, and what the marker above each says of it.

A marker is an HTML comment on the line above the fence, so that readers do not see it.

=========================================  ==================================================================
``<!-- part -->``                          Python: a piece of the page's program, at the level of the module
``<!-- part of an orchestration -->``      Python: statements of an orchestration, with ``ctx``
``<!-- part of an activity -->``           Python: statements of an activity, with ``ctx``
``<!-- part of a client -->``              Python: statements of a coroutine, with ``client``
``<!-- part of a script -->``              Python: statements of a function, with a sync ``client``
``<!-- from FILE -->``                     Python: lines of that file, which runs by itself; or of a template, *.txt*
``<!-- output of FILE -->``                lines that this program prints
``<!-- demo -->``, ``<!-- test -->``       the two commands of the README, which `.ci/run --all` runs
no marker                                  Python: a whole program; a shell command: it can be parsed
=========================================  ==================================================================

The parts of a page are one program, in their order. What a page leaves out (a model that the reader has anyway) is in
``tests/examples/contexts``, in a file with the name of the page.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").rglob("*.md"))]
CONTEXTS: Final = Path(__file__).parent / "contexts"

SIGNATURES: Final = {
    "part of an orchestration": "ctx: affinity.OrchestrationContext",
    "part of an activity": "ctx: affinity.ActivityContext",
    "part of a client": "client: affinity.Client",
    "part of a script": "client: affinity.sync.Client",
}

_FENCE: Final = re.compile(
    r"^(?:<!-- (?P<marker>[^>]+) -->\n)?(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    marker: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(language: str | None = None) -> list[Block]:
    """All blocks of all pages, or only blocks in one language."""
    found = [block for page in PAGES for block in blocks_of(page)]
    return [block for block in found if language in (None, block.language)]


def blocks_of(page: Path) -> Iterator[Block]:
    """The blocks of one page, in their order."""
    text = page.read_text()
    for match in _FENCE.finditer(text):
        yield Block(
            page=page,
            line=text.count("\n", 0, match.start("text")) + 1,
            language=match["language"],
            marker=match["marker"] or "",
            text=textwrap.dedent(match["text"]),
        )


def program_of(page: Path) -> str:
    """The parts of a page as one program, behind its context; "" where a page has no parts."""
    parts = [_in_place(block) for block in blocks_of(page) if _is_part(block)]
    if not parts:
        return ""
    context = CONTEXTS / f"{page.stem.replace('-', '_')}.py"
    return "\n\n".join(["import typing\n\nimport affinity", context.read_text() if context.exists() else "", *parts])


def _is_part(block: Block) -> bool:
    return block.language == "python" and (block.marker == "part" or block.marker in SIGNATURES)


def _in_place(block: Block) -> str:
    if block.marker == "part":
        return block.text
    # No result type: what a part of a function returns is the business of its whole.
    kind = "def" if block.marker == "part of a script" else "async def"
    head = f"{kind} line_{block.line}({SIGNATURES[block.marker]}) -> typing.Any:"
    return f"{head}\n{textwrap.indent(block.text, '    ')}"
