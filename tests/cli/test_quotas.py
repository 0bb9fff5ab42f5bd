"""``affinity quotas``."""

from __future__ import annotations

import pytest

from affinity.cli.help import MISUSED, REFUSED
from tests.cli.conftest import document, refused, succeed

NONE = {"instances": None, "unread_events": None, "instance_bytes": None}


@pytest.mark.usefixtures("database")
def test_limits_are_shown_and_set() -> None:
    """Limits that are not named stay; `none` takes one away."""
    assert document("quotas") == NONE
    assert document("quotas", "--instances", "1", "--unread-events", "500") == NONE | {
        "instances": 1, "unread_events": 500
    }  # fmt: skip
    assert document("quotas", "--instance-bytes", "1000") == {
        "instances": 1, "unread_events": 500, "instance_bytes": 1000
    }  # fmt: skip
    assert "unread events" in succeed("quotas")
    succeed("start", "brew")
    assert "limit of 1 instances" in refused(REFUSED, "start", "brew")
    assert document("quotas", "--instances", "none")["instances"] is None
    succeed("start", "brew")


@pytest.mark.parametrize("limit", ["0", "-1", "many", "1.5", ""])
def test_limits_that_make_no_sense(limit: str) -> None:
    assert "none" in refused(MISUSED, "quotas", "--instances", limit)
