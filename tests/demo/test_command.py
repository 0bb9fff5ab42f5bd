"""The output and exit codes of the command, without running anything."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from affinity.cli import main
from affinity.cli.help import INTERNAL
from affinity.demo import command
from affinity.demo.display import DemoReport
from affinity.demo.run import DemoFailed
from tests.support.cli_runner import new_runner
from tests.support.extras import needs

pytestmark = needs("chitchat_dataset")

KEYS = [
    "provider",
    "workers",
    "sessions",
    "turns",
    "killed_workers",
    "migrated_sessions",
    "hydrations",
    "turns_off_holder",
    "lost_turns",
    "duplicated_results",
    "transcripts_verified",
    "recovery_seconds",
    "turns_per_second",
    "states_agreed",
    "refused_writes",
]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Has the next run end like this; its folder is made in ``tmp_path``."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def ends(outcome: DemoReport | Exception) -> None:
        async def run_demo(*_: object, **__: object) -> DemoReport:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(command, "run_demo", run_demo)

    return ends


def outcome(*differences: str) -> DemoReport:
    return DemoReport(
        provider="sqlite",
        workers=3,
        sessions=2,
        turns=12,
        killed_workers=1,
        migrated_sessions=1,
        hydrations=3,
        turns_off_holder=0,
        lost_turns=len(differences),
        duplicated_results=0,
        transcripts_verified=2 - len(differences),
        recovery_seconds=4.2,
        turns_per_second=100.0,
        states_agreed=2,
        refused_writes=0,
        differences=differences,
        story=("Once upon a time.",),
    )


def invoke(*arguments: str) -> Result:
    return new_runner().invoke(main, ["demo", "--conversations", "2", *arguments])


def test_a_good_run(ends: Any, tmp_path: Path) -> None:
    ends(outcome())
    result = invoke()
    assert result.exit_code == 0, result.output
    assert "Once upon a time." in result.stdout
    assert "2/2  transcripts equal to the data set" in result.stdout
    assert "2/2  states that agree with the history" in result.stdout
    assert "without duplicates, and the history agrees" in result.stdout
    assert not list(tmp_path.iterdir())


def test_json_is_one_object_with_exactly_these_keys(ends: Any) -> None:
    ends(outcome())
    result = invoke("--json")
    assert result.exit_code == 0, result.output
    assert list(json.loads(result.stdout)) == KEYS


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_difference_is_named_and_the_evidence_kept(ends: Any, tmp_path: Path, arguments: list[str]) -> None:
    ends(outcome("conversation 7: the state has 5 messages, and must have 6"))
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert "conversation 7: the state has 5 messages" in result.output
    (kept,) = tmp_path.iterdir()
    assert str(kept) in result.stderr
    if arguments:
        assert json.loads(result.stdout)["lost_turns"] == 1


def test_a_run_that_could_not_end(ends: Any, tmp_path: Path) -> None:
    ends(DemoFailed("worker-2 ended by itself"))
    result = invoke()
    assert result.exit_code == 1
    assert "worker-2 ended by itself" in result.stderr
    assert list(tmp_path.iterdir())


def test_any_other_error_leaves_nothing(ends: Any, tmp_path: Path) -> None:
    ends(ZeroDivisionError())
    assert invoke().exit_code == INTERNAL
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "1"], "none is left; use 2 or more, or --no-kill"),
        (["--workers", "0", "--no-kill"], "--workers"),
        (["--conversations", "7169"], "--conversations"),
        (["--url", "mysql://x/y"], "use sqlite:///path or postgresql://"),
    ],
)
def test_wrong_options(arguments: list[str], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
