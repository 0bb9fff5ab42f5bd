"""``affinity limits``."""

from __future__ import annotations

import pytest

from affinity.cli.help import MISUSED, UNKNOWN
from tests.cli.conftest import Play, document, refused, succeed
from tests.support.limits import stage, wait_at

pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture(autouse=True)
def staged(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instances wait at limits; the user is known."""
    monkeypatch.setenv("AFFINITY_USER", "ann")
    play(lambda puppet: stage(puppet.provider))


def test_the_list_says_how_full_each_is() -> None:
    model, tenant = document("limits", "list")["limits"]
    assert (model["name"], model["in_use"], model["concurrency"], model["waiting"]) == ("model", 2, 2, 1)
    assert model["rate"] == {"count": 600, "per": 60.0, "burst": None, "smooth": False}
    assert (tenant["keyed"], tenant["keys"], tenant["waiting"]) == (True, 2, 3)
    lines = succeed("limits").splitlines()
    assert lines == succeed("limits", "list").splitlines()
    assert lines[0].split() == ["LIMIT", "STATUS", "IN", "USE", "SLOTS", "RATE", "WAITING", "OLDEST", "KEYS", "CHANGED",
                                "NOTE"]  # fmt: skip
    assert lines[1].split()[:8] == ["model", "open", "2", "2", "600", "in", "60", "s"]


def test_keys_and_one_of_them() -> None:
    page = document("limits", "keys", "tenant", "--limit", "1")
    assert ([key["key"] for key in page["keys"]], page["next"]) == (["acme"], "acme")
    assert [key["key"] for key in document("limits", "keys", "tenant", "--all")["keys"]] == ["acme", "tiny"]
    assert "tiny" in succeed("limits", "keys", "tenant")
    shown = document("limits", "show", "tenant", "--key", "acme")
    assert (shown["in_use"], shown["waiting"], shown["is_changed"]) == (1, 2, False)
    assert "waiting   2" in succeed("limits", "show", "tenant", "--key", "acme")
    assert "for each key" in succeed("limits", "show", "tenant")


def test_a_change_shows_what_is_so_now() -> None:
    """With the declared bound beside it, and who did it."""
    assert document("limits", "set", "model", "--concurrency", "3")["waiting"] == 0
    text = succeed("limits", "set", "model", "--rate", "10/s", "--burst", "5")
    assert "slots        3 (code: 2)" in text
    assert "rate         10 in 1 s, 5 at once (code: 600 in 60 s)" in text
    assert "by ann" in text
    assert "by ann" in succeed("limits", "list")
    assert document("limits", "set", "model", "--rate", "none", "--concurrency", "none")["rate"] is None
    key = document("limits", "set", "tenant", "--key", "acme", "--concurrency", "2")
    assert (key["key"], key["concurrency"], key["is_changed"]) == ("acme", 2, True)
    reset = document("limits", "reset", "model")
    assert (reset["concurrency"], reset["rate"]["count"]) == (2, 600)
    assert "(of this key alone)" in succeed("limits", "show", "tenant", "--key", "acme")
    assert "(of this key alone)" not in succeed("limits", "reset", "tenant", "--key", "acme")


def test_a_pause_and_a_ramp() -> None:
    assert document("limits", "pause", "model")["status"] == "paused"
    assert "it is paused by 'ann" in succeed("why", "m-3")
    resumed = document("limits", "resume", "model", "--ramp", "36/h")
    assert (resumed["status"], resumed["ramp"]) == ("open", 0.01)
    assert "0.01 slots more each second" in succeed("limits", "list")
    assert document("limits", "pause", "tenant", "--key", "acme")["paused"] is True
    assert "open (key)" not in succeed("limits", "keys", "tenant")
    assert "paused (key)" in succeed("limits", "keys", "tenant")
    assert document("limits", "resume", "tenant", "--key", "acme")["status"] == "open"


def test_the_audit_log_has_what_was_done() -> None:
    succeed("limits", "pause", "model")
    (entry,) = document("audit", "--target", "model")["entries"]
    assert (entry["user"], entry["source"], entry["action"], entry["kind"]) == ("ann", "command", "pause", "limit")


def test_refused() -> None:
    """With the exit code of each reason, and a line that names the remedy."""
    for command in ("show", "pause", "resume", "reset", "keys"):
        assert "there are 'model', 'tenant'" in refused(UNKNOWN, "limits", command, "absent")
    assert "give a bound to change" in refused(MISUSED, "limits", "set", "model")
    assert "--burst goes with --rate" in refused(
        MISUSED, "limits", "set", "model", "--burst", "5", "--concurrency", "1"
    )
    for rate in ("600", "600/", "600/60", "600/60y", "0.5/s", "-1/s", "0/s", "1/0s"):
        assert "Error" in refused(MISUSED, "limits", "set", "model", f"--rate={rate}")
    for slots in ("-1", "many", "1.5"):
        assert "neither a number from 0" in refused(MISUSED, "limits", "set", "model", f"--concurrency={slots}")
    assert "has no keys" in refused(MISUSED, "limits", "pause", "model", "--key", "acme")
    assert "not a number in a time" in refused(MISUSED, "limits", "resume", "model", "--ramp", "fast")
    assert "no more than the count" in refused(MISUSED, "limits", "set", "model", "--rate", "5/s", "--burst", "6")


def test_work_of_a_priority_says_so(play: Play) -> None:
    play(lambda puppet: wait_at(puppet.provider, "model", "m-4", priority=10))
    assert "priority 10" in succeed("why", "m-4")
    assert document("why", "m-4")["waits_for"]["limit"] == "model"
