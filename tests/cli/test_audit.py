"""``affinity audit``, and that commands leave entries."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from affinity.cli.help import MISUSED, REFUSED, UNKNOWN
from tests.cli.conftest import Play, document, refused, run, succeed


def entries(*options: str) -> list[dict[str, Any]]:
    """Oldest first, without those of the migration of the database."""
    return [each for each in everything(*options) if each["action"] != "migrate"]


def everything(*options: str) -> list[dict[str, Any]]:
    """Oldest first."""
    found: list[dict[str, Any]] = document("audit", "--all", *options)["entries"]
    return found[::-1]


def test_a_migration_leaves_an_entry_if_it_changes_something(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFFINITY_USER", "ann")
    succeed("migrate", "--dry-run")
    for _ in range(2):
        succeed("migrate")
    (entry,) = everything()
    assert (entry["user"], entry["source"], entry["action"], entry["details"]) == (
        "ann",
        "command",
        "migrate",
        {"version": 1},
    )


def test_each_role_that_gets_or_loses_rights_has_an_entry(
    postgres_database: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the transaction of the change: a refused one has none."""
    monkeypatch.setenv("AFFINITY_URL", postgres_database)
    roles = ("audit_client", "audit_worker", "audit_reader")
    with psycopg.connect(postgres_database, autocommit=True) as owner:
        for role in roles:
            owner.execute(f"DO $$ BEGIN CREATE ROLE {role}; EXCEPTION WHEN duplicate_object THEN NULL; END $$".encode())
    succeed("migrate", "--grant-client", roles[0], "--grant-worker", roles[1])
    refused(MISUSED, "migrate", "--grant-reader", roles[2], "--revoke", "nobody_at_all")
    succeed("migrate", "--grant-reader", roles[2], "--revoke", roles[1])
    assert [(each["action"], each["kind"], each["target"], each["details"]) for each in everything()] == [
        ("migrate", "", "", {"version": 1}),
        ("grant", "role", roles[0], {"rights_of": "client"}),
        ("grant", "role", roles[1], {"rights_of": "worker"}),
        ("revoke", "role", roles[1], {}),
        ("grant", "role", roles[2], {"rights_of": "reader"}),
    ]


def test_commands_leave_entries(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the user of the system, or the one that the environment names; what only shows leaves none."""
    succeed("start", "brew", "--id", "a")
    play(lambda puppet: puppet.take("a"))
    monkeypatch.setenv("AFFINITY_USER", "ann")
    succeed("raise", "a", "more", "--data", '"secret"')
    succeed("cancel", "a")
    refused(UNKNOWN, "cancel", "none")
    assert run("resume", "a").exit_code == REFUSED
    succeed("drain", "puppet")
    succeed("resume", "--worker", "puppet")
    succeed("rebalance", "--suspend")
    succeed("quotas", "--instances", "100")
    succeed("schedules", "create", "nightly", "brew", "--every", "3600")
    succeed("schedules", "pause", "nightly", "--reason", "migration")
    succeed("schedules", "trigger", "nightly")
    succeed("schedules", "delete", "nightly", "--yes")
    succeed("delete", "a", "--force", "--yes")
    for shown in (
        ("list",),
        ("workers",),
        ("rebalance",),
        ("schedules", "list"),
        ("prune", "--older-than", "1s", "--dry-run"),
    ):
        succeed(*shown)
    found = entries()
    assert {each["source"] for each in found} == {"command"}
    assert [each["user"] for each in found] == [getpass.getuser(), *["ann"] * (len(found) - 1)]
    assert [(each["action"], each["target"], each["succeeded"]) for each in found] == [
        ("start", "a", True),
        ("raise", "a", True),
        ("cancel", "a", True),
        ("cancel", "none", False),
        ("resume", "a", False),
        ("drain", "puppet", True),
        ("end drain", "puppet", True),
        ("suspend rebalancing", "", True),
        ("set quotas", "", True),
        ("create", "nightly", True),
        ("pause", "nightly", True),
        ("trigger", "nightly", True),
        ("delete", "nightly", True),
        ("delete", "a", True),
    ]
    assert "secret" not in json.dumps(found)


def test_the_list_filters_and_pages(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFFINITY_USER", "ann")
    for n in range(3):
        succeed("start", "brew", "--id", f"i{n}")
    monkeypatch.setenv("AFFINITY_USER", "bob")
    refused(UNKNOWN, "cancel", "none\u202e")
    assert [each["target"] for each in entries("--user", "ann", "--action", "start")] == ["i0", "i1", "i2"]
    assert [each["outcome"] for each in entries("--refused")] == ["UnknownInstance"]
    assert [each["user"] for each in entries("--target", "i1")] == ["ann"]
    assert entries("--until", "2020-01-01") == entries("--source", "console") == []
    assert len(entries("--since", "2020-01-01")) == 4
    page = document("audit", "--limit", "3")
    assert [each["target"] for each in page["entries"]] == ["none\u202e", "i2", "i1"]
    assert [each["target"] for each in document("audit", "--after", page["next"])["entries"]] == ["i0", ""]
    text = succeed("audit")
    assert "\u202e" not in text
    assert text.startswith("WHEN")
    assert "TARGET" in text.splitlines()[0]
    assert "refused: UnknownInstance" in text
    refused(MISUSED, "audit", "--since", "yesterday")
    assert succeed("audit", "--user", "eve") == ""
