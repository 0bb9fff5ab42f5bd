"""Options of a worker: defaults, where they come from, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from affinity import RuntimeOptions
from affinity.errors import InvalidOptions


def test_the_defaults_are_those_of_the_document() -> None:
    options = RuntimeOptions.make()
    assert options.max_sessions_per_runtime == 100
    assert options.session_lock_timeout == 300
    assert options.worker_lease_timeout == 15
    assert options.work_item_lock_timeout == 30


def test_two_workers_without_a_name_do_not_share_one() -> None:
    assert RuntimeOptions.make().worker_node_id != RuntimeOptions.make().worker_node_id


def test_the_environment_gives_what_flags_leave_open() -> None:
    environ = {"AFFINITY_WORKER_NODE_ID": "pod-0", "AFFINITY_POLL_INTERVAL": "0.5", "OTHER": "x"}
    options = RuntimeOptions.from_environment(environ, poll_interval=0.25, max_attempts=None)
    assert (options.worker_node_id, options.poll_interval, options.max_attempts) == ("pod-0", 0.25, 10)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"session_lock_timeout": 10, "work_item_lock_timeout": 30}, ["10 s", "30 s"]),
        ({"worker_lease_timeout": 1, "poll_interval": 2}, ["1 s", "2 s"]),
        ({"stall_timeout": 5, "worker_lease_timeout": 15}, ["5 s", "15 s"]),
        ({"unregistered_timeout": 0.5, "poll_interval": 1}, ["0.5 s", "1 s"]),
        ({"max_outstanding_bytes": 2**22, "max_batch_bytes": 2**23}, [str(2**22), str(2**23)]),
        ({"max_batch_bytes": 1}, ["max_batch_bytes"]),
        ({"max_sessions_per_runtime": -1}, ["max_sessions_per_runtime", "-1"]),
        ({"worker_node_id": "a\nb"}, ["worker_node_id", "U+000A"]),
        ({"poll_interval": float("nan")}, ["poll_interval"]),
        ({"no_such_option": 1}, ["no_such_option"]),
    ],
)
def test_what_cannot_be_is_refused_with_the_values(values: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(InvalidOptions) as refused:
        RuntimeOptions.make(**values)
    assert [word for word in said if word not in str(refused.value)] == []
