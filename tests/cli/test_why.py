"""``affinity why``."""

from __future__ import annotations

from affinity.cli.help import UNKNOWN
from tests.cli.conftest import Play, document, refused, succeed


def test_what_an_instance_waits_for(play: Play) -> None:
    succeed("start", "brew", "--id", "pot")
    assert succeed("why", "pot") == "'pot' waits for a worker: none is alive; start one\n"
    assert document("why", "pot")["waits_for"]["code"] == "no_worker"
    (unserved,) = document("why")["unserved"]
    assert (unserved["code"], unserved["instance_id"]) == ("no_worker", "pot")
    play(lambda puppet: puppet.end_badly("pot", "failed", '{"type": "Spilled", "message": "tea"}'))
    assert succeed("why", "pot") == "'pot' is failed with Spilled: tea\n"
    assert document("why", "pot") == {"instance_id": "pot", "status": "failed", "waits_for": None}
    assert "nowhere" in refused(UNKNOWN, "why", "nowhere")


def test_work_that_no_live_worker_can_take(play: Play) -> None:
    play(_nothing)
    assert succeed("why") == ""
    succeed("start", "brew", "--id", "pot")
    (unserved,) = document("why")["unserved"]
    assert (unserved["code"], unserved["count"], unserved["instance_id"]) == ("name_not_registered", 1, "pot")
    assert "no live worker registers the orchestration 'brew'" in succeed("why")


async def _nothing(_: object) -> None:
    """The worker has registered, and leaves its lease."""
