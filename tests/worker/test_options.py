"""Options of a worker: defaults, where they come from, and refused values."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest

from affinity import RuntimeOptions
from affinity.cli.worker import worker
from affinity.errors import InvalidOptions
from affinity.worker.options import OptionDescription


def test_the_defaults_are_as_documented() -> None:
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


def test_tags_are_separated_by_commas() -> None:
    assert RuntimeOptions.from_environment({"AFFINITY_TAGS": "gpu, eu,gpu"}).tags == ("gpu", "eu")
    options = RuntimeOptions.from_environment({"AFFINITY_ONLY_TAGGED": "true"}, tags="gpu")
    assert (options.tags, options.only_tagged) == (("gpu",), True)


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
        ({"tags": ("a#b",)}, ["tags", "a#b"]),
        ({"tags": "a b"}, ["tags", "a b", "commas separate tags"]),
        ({"tags": [str(n) for n in range(9)]}, ["tags", "8", "9"]),
        ({"only_tagged": True}, ["only_tagged", "tags"]),
    ],
)
def test_what_cannot_be_is_refused_with_the_values(values: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(InvalidOptions) as refused:
        RuntimeOptions.make(**values)
    assert [word for word in said if word not in str(refused.value)] == []


def test_sessions_are_not_left_to_a_name_that_does_not_return() -> None:
    with pytest.raises(InvalidOptions, match="restart_grace is set, and worker_node_id is not"):
        RuntimeOptions.make(restart_grace=5.0)
    assert RuntimeOptions.make(restart_grace=5.0, worker_node_id="pod-0").restart_grace == 5.0


def test_the_constructor_refuses_what_make_refuses() -> None:
    """With one error, which names all that is wrong; what was given to an option that does not exist is not shown."""
    wrong: dict[str, Any] = {"max_attempts": 0, "poll_interval": "x", "stal_timeout": 1, "url": "postgresql://u:pw@h"}
    with pytest.raises(InvalidOptions) as refused:
        RuntimeOptions(**wrong)
    said = str(refused.value)
    for part in (
        "max_attempts = 0",
        "poll_interval = 'x'",
        "stal_timeout: .* did you mean stall_timeout",
        "url: there",
    ):
        assert re.search(part, said), part
    assert "pw" not in said
    assert refused.value.__context__ is None
    with pytest.raises(InvalidOptions, match=r"session_lock_timeout .*stall_timeout .*max_outstanding_bytes"):
        RuntimeOptions(session_lock_timeout=10, stall_timeout=5, max_batch_bytes=8 << 20, max_outstanding_bytes=4 << 20)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("AFFINITY_METRIC_PORT", "AFFINITY_METRICS_PORT"),
        ("AFFINITY_MAX_SESSIONS", "AFFINITY_MAX_SESSIONS_PER_RUNTIME"),
        ("AFFINITY_NODE_ID", "AFFINITY_WORKER_NODE_ID"),
        ("AFFINITY_ULR", "AFFINITY_URL"),
        ("affinity_poll_interval", "AFFINITY_POLL_INTERVAL"),
    ],
)
def test_a_misspelt_variable_is_refused(name: str, meant: str) -> None:
    with pytest.raises(InvalidOptions, match=f"{name}: did you mean {meant}") as refused:
        RuntimeOptions.from_environment({name: "s3cret"})
    assert "s3cret" not in str(refused.value)


def test_variables_of_others_are_left_alone() -> None:
    """Variables of Kubernetes for a Service "affinity-metrics", among others."""
    link = {"SERVICE_HOST": "10.0.0.1", "SERVICE_PORT": "80", "SERVICE_PORT_HTTP": "80", "PORT_80_TCP_ADDR": "10.0.0.1"}
    environ = {f"AFFINITY_METRICS_{name}": value for name, value in link.items()}
    environ |= {"AFFINITY_WORKERS_PORT": "tcp://10.0.0.1:80", "AFFINITY_TEST_POSTGRES_URL": "x", "AFFINITY_URL": "y"}
    assert RuntimeOptions.from_environment(environ).metrics_port is None


def test_metrics_are_for_this_machine_unless_the_environment_sets_the_port() -> None:
    """As the StatefulSet does: there they are scraped from outside."""
    environ = {"AFFINITY_METRICS_PORT": "9464"}
    assert RuntimeOptions(metrics_port=9464).metrics_host == "127.0.0.1"
    assert RuntimeOptions.from_environment(environ).metrics_host == "0.0.0.0"  # noqa: S104
    assert RuntimeOptions.from_environment(environ, metrics_port=1).metrics_host == "127.0.0.1"
    assert RuntimeOptions.from_environment(environ | {"AFFINITY_METRICS_HOST": "::1"}).metrics_host == "::1"


@pytest.mark.parametrize(
    "option", [option for option in RuntimeOptions.describe() if option.has_none], ids=lambda one: one.name
)
def test_none_is_given_by_variable_and_flag(option: OptionDescription) -> None:
    """Whatever may be None: a variable keeps it forever, and a flag lifts what a variable sets."""
    variable = f"AFFINITY_{option.name.upper()}"
    for text in ("none", "None"):
        assert getattr(RuntimeOptions.from_environment({variable: text}), option.name) is None
    (flag,) = [param for param in worker.params if param.name == option.name]
    value = flag.type.convert("none", flag, None)
    set_by_variable = {variable: "86400" if option.type is not str else "v1"}
    assert getattr(RuntimeOptions.from_environment(set_by_variable, **{option.name: value}), option.name) is None


def test_the_options_with_none_are_those_that_may_be_none() -> None:
    may_be = [name for name, field in RuntimeOptions.model_fields.items() if type(None) in get_args(field.annotation)]
    assert {option.name for option in RuntimeOptions.describe() if option.has_none} == {*may_be}
