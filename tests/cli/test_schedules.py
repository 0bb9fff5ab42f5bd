"""``affinity schedules``."""

from __future__ import annotations

import pytest

from affinity.cli.help import MISUSED, REFUSED, UNKNOWN
from tests.cli.conftest import document, refused, succeed

pytestmark = pytest.mark.usefixtures("database")


def test_a_schedule_from_its_creation_to_its_end() -> None:
    """Each command prints the schedule as it is then."""
    made = document("schedules", "create", "nightly", "summary", "--cron", "0 3 * * *", "--zone", "Europe/Berlin")
    assert (made["name"], made["state"], made["target"], made["zone"]) == (
        "nightly", "active", "summary", "Europe/Berlin"
    )  # fmt: skip
    assert len(made["next_ticks"]) == 5
    shown = document("schedules", "show", "nightly")
    assert (
        shown.pop("waits_for") == "schedule 'nightly' does not tick: no worker is alive that does not drain; start one"
    )
    assert shown.pop("late_seconds") is None
    assert shown == made
    changed = document("schedules", "update", "nightly", "--every", "15m", "--overlap", "queue", "--catch-up", "6h")
    assert (changed["timing"], changed["overlap"]) == ("every 0:15:00", "queue")
    paused = document("schedules", "pause", "nightly", "--reason", "migration")
    assert (paused["state"], paused["note"], paused["next_ticks"]) == ("paused", "migration", [])
    assert "migration" in succeed("schedules", "list")
    assert document("schedules", "resume", "nightly")["state"] == "active"
    succeed("schedules", "delete", "nightly", "--yes")
    assert document("schedules", "list") == {"schedules": [], "next": None}


def test_a_trigger_prints_the_instance() -> None:
    """Which is there; its input is what was given."""
    succeed("schedules", "create", "poll", "poll_prices", "--every", "300", "--input", '{"market": "eu"}')
    instance_id = succeed("schedules", "trigger", "poll").strip()
    shown = document("show", instance_id)
    assert (shown["name"], shown["status"]) == ("poll_prices", "pending")
    assert document("schedules", "trigger", "poll")["schedule"] == "poll"


def test_a_backfill_says_how_many() -> None:
    succeed("schedules", "create", "daily", "report", "--cron", "0 0 * * *")
    arguments = (
        "schedules",
        "backfill",
        "daily",
        "--from",
        "2026-03-01T00:00:00+00:00",
        "--to",
        "2026-03-08T00:00:00+00:00",
    )
    assert document(*arguments) == {"schedule": "daily", "fired": 8}
    assert document(*arguments)["fired"] == 0


def test_lists_have_pages() -> None:
    for name in "abc":
        succeed("schedules", "create", name, "report", "--every", "1h")
    page = document("schedules", "list", "--limit", "2")
    assert ([each["name"] for each in page["schedules"]], page["next"]) == (["a", "b"], "b")
    assert [each["name"] for each in document("schedules", "list", "--after", "b")["schedules"]] == ["c"]
    assert len(document("schedules", "list", "--all")["schedules"]) == 3
    assert len(succeed("schedules", "list").splitlines()) == 4


def test_an_event_to_an_instance() -> None:
    made = document("schedules", "create", "tick", "chat-17", "--event", "reminder", "--every", "1h")
    assert made["target"] == "event 'reminder' to 'chat-17'"
    assert "no instance has the id" in refused(UNKNOWN, "schedules", "trigger", "tick")


def test_refused() -> None:
    """With the exit code of each reason, and a line that names the remedy."""
    assert "it has 5 fields" in refused(MISUSED, "schedules", "create", "a", "report", "--cron", "often")
    assert "one of cron=" in refused(MISUSED, "schedules", "create", "a", "report")
    assert "not a duration" in refused(MISUSED, "schedules", "create", "a", "report", "--every", "soon")
    succeed("schedules", "create", "a", "report", "--every", "60")
    assert "there already" in refused(REFUSED, "schedules", "create", "a", "report", "--every", "60")
    assert "give an option" in refused(MISUSED, "schedules", "update", "a")
    assert "give --yes" in refused(MISUSED, "schedules", "delete", "a")
    for command in ("show", "pause", "resume", "trigger"):
        assert "no schedule is named 'b'" in refused(UNKNOWN, "schedules", command, "b")
