"""TLC checks limits, `docs/understand/model/WorkLimit.tla`, and their variants without one rule each."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.model.tlc import count_states, run_tlc

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RULES: Final = ("OneAdmission", "TakeTogether", "MarkInside", "CheckToken")
SAFETY: Final = "INVARIANTS Bounded RunsBounded AllOrNone SlotsCounted"
BOUNDS: Final = "INVARIANTS Bounded RunsBounded"
ENDS: Final = "PROPERTY AllEnd"


def check(place: Path, *lines: str, broken: str = "", items: str, slots: int = 1, tokens: int = 2) -> str:
    """The output of TLC for two workers without the rule ``broken``; item 1 needs one slot, each other item two."""
    constants = {rule: rule != broken for rule in RULES}
    names = {"Workers": "{w1, w2}", "Admitters": "{a1, a2}", "Items": items}
    return run_tlc(place, "WorkLimit", *lines, constants=constants | names | {"Slots": slots, "MaxToken": tokens})


def test_no_limit_is_exceeded_and_no_slot_lost(tmp_path: Path) -> None:
    assert count_states(check(tmp_path, "SYMMETRY Symmetric", SAFETY, items="{1, 2, 3}", tokens=1)) > 5_000


@pytest.mark.nightly
def test_no_limit_of_several_slots_is_exceeded(tmp_path: Path) -> None:
    assert count_states(check(tmp_path, "SYMMETRY Symmetric", SAFETY, items="{1, 2, 3}", slots=2)) > 250_000


def test_all_work_ends(tmp_path: Path) -> None:
    """Two items that need the same two slots do not wait for each other; what an expired lock held is free again."""
    assert count_states(check(tmp_path, SAFETY, ENDS, items="{2, 3}", tokens=1)) > 2_000


@pytest.mark.nightly
def test_all_work_that_comes_again_ends(tmp_path: Path) -> None:
    assert count_states(check(tmp_path, SAFETY, ENDS, items="{1, 2}")) > 25_000


@pytest.mark.nightly_cases("Token|Inside")
@pytest.mark.parametrize(
    ("rule", "line", "found"),
    [
        ("OneAdmission", BOUNDS, "Invariant Bounded is violated"),
        ("CheckToken", BOUNDS, "Invariant RunsBounded is violated"),
        ("TakeTogether", ENDS, "Temporal properties were violated"),
        ("MarkInside", ENDS, "Temporal properties were violated"),
    ],
)
def test_each_rule_is_needed(tmp_path: Path, rule: str, line: str, found: str) -> None:
    """Without it TLC finds a run that exceeds a limit, or in which work waits for ever."""
    items, tokens = ("{1, 2}", 2) if line == BOUNDS else ("{2, 3}", 1)
    output = check(tmp_path, line, broken=rule, items=items, tokens=tokens)
    assert found in output, output
