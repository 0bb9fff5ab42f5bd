"""What `access` may return."""

from __future__ import annotations

from typing import Any

import pytest

from affinity.console import ALL, NONE, READ, Access
from affinity.errors import InvalidOptions


@pytest.mark.parametrize("actions", ["read", ["read"], None, {"raed"}, {"read", "delete_all"}, {"read": 1}, {1}])
def test_actions_that_do_not_exist_are_refused(actions: Any) -> None:
    """A misspelt action would be one that the user silently lacks; and "read" in a text is a part of it."""
    with pytest.raises(InvalidOptions, match="Access"):
        Access(actions, "ann")


@pytest.mark.parametrize("actions", [NONE, READ, ALL, {"read", "answer"}, frozenset({"answer"})])
def test_actions_that_exist_pass(actions: Any) -> None:
    assert Access(actions).may("answer") is ({"read", "answer"} <= actions)
