"""TLC checks the lease protocol, `docs/understand/model/SessionLease.tla`, and its variants without one rule each."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.model.tlc import count_states, run_tlc

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RULES: Final = ("FenceEpoch", "KeepEpoch", "CheckCacheEpoch", "CheckAhead", "WaitForWork")
INVARIANTS: Final = ("StateMatchesHistory", "FreshCache", "MovesWasteNothing")


def check(place: Path, *broken: str, items: str = "{1, 2, 3}") -> str:
    """The output of TLC for two workers and three epochs, without the rules that are ``broken``."""
    constants = {rule: rule not in broken for rule in RULES}
    sizes = {"Workers": "{w1, w2}", "Items": items, "MaxEpoch": 3, "MaxToken": 2}
    lines = ("SYMMETRY Symmetric", f"INVARIANTS {' '.join(INVARIANTS)}")
    return run_tlc(place, "SessionLease", *lines, constants=constants | sizes)


def test_the_protocol_holds(tmp_path: Path) -> None:
    """In all its states, and there are enough of them to say something."""
    assert count_states(check(tmp_path)) > 100_000


@pytest.mark.nightly_cases("Check|Wait")
@pytest.mark.parametrize(
    ("rule", "invariant"),
    [
        ("FenceEpoch", "StateMatchesHistory"),
        ("CheckCacheEpoch", "StateMatchesHistory"),
        ("CheckAhead", "StateMatchesHistory"),
        ("WaitForWork", "MovesWasteNothing"),
    ],
)
def test_each_rule_is_needed(tmp_path: Path, rule: str, invariant: str) -> None:
    """Without it TLC finds a run that violates an invariant."""
    output = check(tmp_path, rule)
    assert f"Invariant {invariant} is violated" in output, output


@pytest.mark.nightly
def test_an_incarnation_need_not_keep_its_epoch(tmp_path: Path) -> None:
    """It may: that saves a hydrate, and is no rule that the protocol rests on."""
    assert "No error has been found" in check(tmp_path, "KeepEpoch", items="{1, 2}")
