"""What the runs have shown, for people and for scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from examples.local_llm.chats import Mode, Start, TimedTurn
from examples.local_llm.run import TimedConversation

ROWS: Final[Sequence[tuple[Mode, Start, str]]] = (
    ("slot", "warm", "session, warm"),
    ("slot", "restored", "session moved, slot restored"),
    ("transcript", "rebuilt", "session moved, transcript read"),
    ("anywhere", "anywhere", "no session, any worker"),
)
"""What is shown to people: how a turn began, in which mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Turns of one kind, by their medians. Times are seconds."""

    mode: Mode
    start: Start
    turns: int
    kept: float  # tokens
    read: float  # tokens
    loading: float  # the state, and the slot
    first_token: float  # loading, and reading the tokens
    first_token_longest: float  # of all these turns
    whole: float  # the reply, too, and saving
    saving: float  # the slot
    saved: float  # bytes of it


def rows(mode: Mode, talks: Iterable[TimedConversation]) -> Sequence[Row]:
    """One for each way in which turns began."""
    kinds: dict[Start, list[TimedTurn]] = {}
    for talk in talks:
        for turn in talk.turns:
            kinds.setdefault(turn.start, []).append(turn)
    return [_row(mode, start, turns) for start, turns in kinds.items()]


def _row(mode: Mode, start: Start, turns: Sequence[TimedTurn]) -> Row:
    def middle(value: Callable[[TimedTurn], float]) -> float:
        return median(map(value, turns))

    return Row(
        mode=mode,
        start=start,
        turns=len(turns),
        kept=middle(lambda turn: turn.done.kept),
        read=middle(lambda turn: turn.done.read),
        loading=middle(lambda turn: turn.loading),
        first_token=middle(lambda turn: turn.loading + turn.done.reading),
        first_token_longest=max(turn.loading + turn.done.reading for turn in turns),
        whole=middle(lambda turn: turn.loading + turn.done.reading + turn.done.writing + turn.saving),
        saving=middle(lambda turn: turn.saving),
        saved=middle(lambda turn: turn.saved),
    )


def as_json(found: Sequence[Row], seconds: Mapping[Mode, float]) -> dict[str, Any]:
    """One object."""
    return {"rows": [asdict(row) for row in found], "seconds": dict(seconds)}


def show(console: Console, found: Sequence[Row], seconds: Mapping[Mode, float]) -> None:
    """One table, of medians: tokens of the prompt that were in the slot and that were read, and times."""
    table = Table("turn", box=None, pad_edge=False, header_style="bold")
    for title in ("turns", "tokens kept", "read", "first after", "longest", "loading", "whole reply", "slot"):
        table.add_column(title, justify="right", no_wrap=True)
    by_kind = {(row.mode, row.start): row for row in found}
    for mode, start, title in ROWS:
        if (row := by_kind.get((mode, start))) is not None:
            table.add_row(title, *_cells(row))
    console.print(table)
    console.print(
        f"All conversations: {seconds['slot']:.1f} s on sessions with saved slots, {seconds['transcript']:.1f} s on "
        f"sessions with transcripts only, {seconds['anywhere']:.1f} s without sessions."
    )


def _cells(row: Row) -> Sequence[str]:
    return (
        str(row.turns),
        f"{row.kept:.0f}",
        f"{row.read:.0f}",
        f"{row.first_token * 1000:.0f} ms",
        f"{row.first_token_longest * 1000:.0f} ms",
        f"{row.loading * 1000:.0f} ms",
        f"{row.whole * 1000:.0f} ms",
        f"{row.saved / 1e6:.1f} MB",
    )
