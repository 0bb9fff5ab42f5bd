"""``affinity check``."""

from __future__ import annotations

from pathlib import Path

from affinity.cli.help import MISUSED, NO_DATABASE
from tests.cli.conftest import document, refused, run, succeed


def test_a_line_for_each_check(database: Path) -> None:
    lines = succeed("check").splitlines()
    assert [line.split()[0] for line in lines] == ["ok"] * 8
    assert f"file        {database}" in lines[1]


def test_warnings_have_a_remedy_and_are_no_failure(directory: Path) -> None:
    """The file is made by a migration, or by a worker."""
    lines = succeed("check").splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("warning  file "))
    assert lines[place + 1].strip() == "remedy: run `affinity migrate`, or `await affinity.migrate(url)` in Python"
    assert list(directory.iterdir()) == []


def test_errors_have_an_exit_code(database: Path) -> None:
    """All results are shown, for people and for scripts."""
    database.write_text("no database\n" * 100)
    result = run("check")
    assert result.exit_code == NO_DATABASE
    assert "error    file" in result.stdout
    assert "ok       disk" in result.stdout
    found = document("check", code=NO_DATABASE)
    assert not found["usable"]
    assert [each["check"] for each in found["results"] if each["level"] == "error"] == ["file"]
    assert {*found["results"][0]} == {"check", "level", "found", "remedy"}


def test_a_server_that_cannot_be_reached_is_a_result() -> None:
    (only,) = document("check", "--url", "postgresql://secret@127.0.0.1:1/none", code=NO_DATABASE)["results"]
    assert only["level"] == "error"
    assert "secret" not in only["found"]
    assert "no provider" in refused(MISUSED, "check", "--url", "nothing://here")


def test_a_document_for_scripts(database: Path) -> None:
    found = document("check")
    assert found["usable"]
    assert {each["level"] for each in found["results"]} == {"ok"}
    assert {each["remedy"] for each in found["results"]} == {None}
