"""The JSON form of events, messages and tasks: stable, spliced, tolerant of new fields."""

from __future__ import annotations

import json
from typing import Any

import pytest

from affinity import RetryPolicy
from affinity.errors import ErrorDetails, NotSerializable, PayloadTooLarge
from affinity.limits import JSON_DEPTH, MAX_PAYLOAD_DEPTH
from affinity.orchestration import events as ev
from affinity.orchestration.codec import Codec, read_json
from affinity.orchestration.failures import details_of
from affinity.orchestration.gates import LimitUse
from affinity.orchestration.wire import (
    ANY_EXECUTION,
    ActivityTask,
    decode_event,
    decode_task,
    encode_event,
    encode_message,
    encode_task,
    read_message,
)
from affinity.records import ActivityRun
from affinity.user_code import describe_error
from tests.support.messages import decode_message

RETRY = RetryPolicy(max_attempts=5, initial_interval=0.5, non_retryable=(ValueError, "Fatal"))
CARRIED = (ev.CarriedEvent("a", '{"x":1}'), ev.CarriedEvent("ü\n", "null"))

DETAILS = ErrorDetails("lost ü", ("Base", "Root"), (("n", 1), ("x", 0.5), ("text", "é"), ("no", None), ("yes", True)))

SAMPLES: list[ev.Event] = [
    ev.OrchestrationStarted("chat", "1.0.0", '{"a":[1,2.5,null]}', ev.ParentRef("p", 2, 7, "b"), CARRIED, 12.5),
    ev.OrchestrationStarted("chat", "1.0.0", "null"),
    ev.ActivityScheduled("reply", '"hi"', "session-1", RETRY, 2.5),
    ev.ActivityScheduled("reply", "1"),
    ev.ActivityScheduled("reply", "1", "session-1", ordered=True),
    ev.ActivityScheduled("reply", "1", "session-1", tag="gpu", wait=2.0, fail_after=5.0),
    ev.ActivityScheduled("reply", "1", tag="gpu", default_tag=True, priority=7),
    ev.ActivityScheduled("reply", "1", limits=(LimitUse("model"), LimitUse("tenant ü", 'a"b\\', 3, 0.5))),
    ev.ActivityCompleted(3, "[true]"),
    ev.ActivityFailed(3, "failed", "ValueError", 'quote " and \\ and \n and é'),
    ev.ActivityFailed(3, "failed", "E", "m", DETAILS),
    ev.ActivityFailed(3, "failed", "E", "m", ErrorDetails(bases=("Base",))),
    ev.ActivityCancelled(3),
    ev.TimerCreated(0.1),
    ev.TimerFired(4),
    ev.TimerCancelled(4),
    ev.EventAwaited("message"),
    ev.EventAwaited("message", ev.Hold("session-ü", 2.5)),
    ev.SessionWatched("session-1"),
    ev.SessionReleased("session-1"),
    ev.EventRaised("message", '"x"'),
    ev.EventAwaitCancelled(5),
    ev.EventRefused(5, "e", "must be int"),
    ev.EventAccepted(7, "e", -1),
    ev.ExecutionReset((ev.Ancestor(1, 5), ev.Ancestor(2, 7))),
    ev.SubOrchestrationScheduled("child", None, "i/1:5", "null"),
    ev.SubOrchestrationScheduled("child", "2.0.0", "i/1:5", "null"),
    ev.SubOrchestrationCompleted(5, "{}"),
    ev.SubOrchestrationFailed(5, "exists", "InstanceExists", "taken"),
    ev.SubOrchestrationFailed(5, "failed", "E", "m", DETAILS),
    ev.SubOrchestrationCancelled(5),
    ev.OrchestrationStarted("chat", "1.0.0", "null", custom_status='{"a":1}'),
    ev.DetachedStarted("archive", None, "i/1:5", "null"),
    ev.DetachedStarted("archive", "2.0.0", "i/1:5", '{"a":1}'),
    ev.EventSent("other", "message", '"x"'),
    ev.EventRaised("message", '"x"', "key ü"),
    ev.EventReplied("key ü", '{"a":1}'),
    ev.ContinuedAsNew("1", None, (ev.CarriedEvent("a", "1", "key ü"), *CARRIED)),
    ev.GuidCreated("abc"),
    ev.TimeRead(1.5e9),
    ev.CustomStatusSet('{"step":1}'),
    ev.ValueSet("key", "[1]"),
    ev.ValueSet("key"),
    ev.ValuesCleared(),
    ev.ValueRead("key", '"text"'),
    ev.ValueRead("key"),
    ev.LabelsSet({}),
    ev.LabelsSet({"tenant": 'a"b\\c é'}),
    ev.SubOrchestrationScheduled("child", None, "i/1:5", "null", {"tenant": "acme"}),
    ev.CancelRequested("enough"),
    ev.OrchestrationCompleted("null"),
    ev.OrchestrationFailed("ValueError", ""),
    ev.OrchestrationFailed("ValueError", "", DETAILS),
    ev.OrchestrationCancelled("enough"),
    ev.ContinuedAsNew("1", "2.0.0", CARRIED),
    ev.ContinuedAsNew("1"),
]


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: type(event).__name__)
def test_round_trip(event: ev.Event) -> None:
    text = encode_event(event)
    assert decode_event(text) == event
    assert json.loads(text)["type"]


def test_every_event_is_sampled() -> None:
    assert {type(event) for event in SAMPLES} == set(ev.EVENTS)


def test_the_form_is_readable_and_stable() -> None:
    event = ev.ActivityScheduled("reply", '{"text":"hi"}', "s", RETRY, 3)
    assert encode_event(event) == (
        '{"type":"activity_scheduled","name":"reply","input":{"text":"hi"},"session_id":"s","retry":{"max_attempts":5,'
        '"initial_interval":0.5,"backoff":2.0,"max_interval":60.0,"non_retryable":["ValueError","Fatal"],'
        '"strategy":"exponential","jitter":0.0,"total_timeout":null},"timeout":3}'
    )
    assert encode_event(ev.ActivityScheduled("reply", "1", "s", ordered=True)) == (
        '{"type":"activity_scheduled","name":"reply","input":1,"session_id":"s","ordered":true}'
    )
    uses = (LimitUse("model"), LimitUse("tenant", "acme", 2, 3.0))
    assert encode_event(ev.ActivityScheduled("reply", "1", limits=uses, priority=7)) == (
        '{"type":"activity_scheduled","name":"reply","input":1,'
        '"limits":[["model","",1,1.0],["tenant","acme",2,3.0]],"priority":7}'
    )
    assert encode_event(ev.EventAwaited("e")) == '{"type":"event_awaited","name":"e"}'
    assert encode_event(ev.EventAwaited("e", ev.Hold("s", 60.0))) == (
        '{"type":"event_awaited","name":"e","hold":{"session_id":"s","seconds":60.0}}'
    )
    assert encode_event(ev.ActivityFailed(1, "failed", "E", "m", DETAILS)).endswith(
        '"details":{"category":"lost ü","bases":["Base","Root"],'
        '"fields":{"n":1,"x":0.5,"text":"é","no":null,"yes":true}}}'
    )
    assert encode_event(ev.TimerFired(7)) == '{"type":"timer_fired","schedule_id":7}'


def test_an_error_without_details_is_written_without_them() -> None:
    text = '{"type":"activity_failed","schedule_id":3,"kind":"failed","error_type":"E","message":"m"}'
    assert encode_event(ev.ActivityFailed(3, "failed", "E", "m", details_of(ValueError()))) == text
    assert decode_event(text) == ev.ActivityFailed(3, "failed", "E", "m")


def test_payloads_come_back_compact() -> None:
    event = decode_event('{"type": "activity_completed", "schedule_id": 1, "result": {"a" : [1, "é"]}}')
    assert event == ev.ActivityCompleted(1, '{"a":[1,"é"]}')


def test_keys_of_newer_versions_are_ignored() -> None:
    assert decode_event('{"type":"timer_fired","schedule_id":7,"colour":"red"}') == ev.TimerFired(7)
    task = decode_task(
        '{"input":1,"orchestration":"o","version":"1","retry":{"max_attempts":2,"humour":0.1},"priority":9}'
    )
    assert task == ActivityTask("1", "o", "1", RetryPolicy(max_attempts=2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"type":"teleported"}', "unknown event type 'teleported'"),
        ("{}", "unknown event type None"),
        ("[]", "unknown event type None"),
        ('{"type":["x"]}', "unknown event type"),
        ("{", "not JSON"),
        ('{"type":"timer_fired"}', "timer_fired: KeyError: 'schedule_id'"),
        ('{"type":"timer_fired","schedule_id":"7"}', "expected an integer"),
        ('{"type":"timer_fired","schedule_id":true}', "expected an integer"),
        ('{"type":"timer_created","delay":"1"}', "expected a number"),
        ('{"type":"event_awaited","name":1}', "expected a string"),
        ('{"type":"event_awaited","name":"e","hold":{"session_id":"s"}}', "event_awaited: KeyError: 'seconds'"),
        ('{"type":"event_awaited","name":"e","hold":"s"}', "event_awaited: TypeError"),
        ('{"type":"activity_scheduled","name":"a","input":1,"retry":{"max_attempts":0}}', "max_attempts"),
        ('{"type":"activity_scheduled","name":"a","input":1,"retry":{"strategy":"lunar"}}', "strategy"),
        ('{"type":"orchestration_started","name":"a","version":"1","input":1,"parent":{}}', "instance_id"),
        ('{"type":"continued_as_new","input":1,"carried":[1]}', "continued_as_new"),
    ],
)
def test_what_is_no_event_is_refused(text: str, message: str) -> None:
    with pytest.raises(NotSerializable, match=message.replace("[", r"\[")):
        decode_event(text)


def test_messages_carry_their_execution() -> None:
    for execution_id in (ANY_EXECUTION, 3):
        for event in SAMPLES:
            if type(event) in ev.INPUTS:
                assert decode_message(encode_message(execution_id, event)) == (execution_id, event)


def test_a_message_may_name_the_run_behind_it() -> None:
    """A malformed run is no reason to refuse the message."""
    done = ev.ActivityCompleted(2, "1")
    text = encode_message(3, done, ActivityRun('w-"0"', 2))
    assert read_message(text) == (3, done, ActivityRun('w-"0"', 2))
    assert decode_message(text) == (3, done)
    waited = ActivityRun("w", 1, 2.5)
    assert read_message(encode_message(3, done, waited)).run == waited
    for worker, attempt in (('"w"', "null"), ("1", "1"), ('"w"', "0"), ('"w"', "true"), ('"w"', str(2**31))):
        odd = text.replace('"w-\\"0\\""', worker).replace('"attempt":2', f'"attempt":{attempt}')
        assert odd != text
        assert read_message(odd) == (3, done, None)


@pytest.mark.parametrize("text", ["[]", '{"event":{}}', '{"execution":1}', '{"execution":1,"event":1}', "x"])
def test_what_is_no_message_is_refused(text: str) -> None:
    with pytest.raises(NotSerializable):
        decode_message(text)


def test_tasks_round_trip() -> None:
    limited = ActivityTask("1", "o", "1", limits=(LimitUse("model"), LimitUse("tenant", "acme", 3, 0.5)))
    for task in (ActivityTask("1", "o", "1"), ActivityTask('{"a":1}', "o", "1", RETRY, 1.5), limited):
        assert decode_task(encode_task(task)) == task
    assert encode_task(ActivityTask("1", "o", "1.0.0")) == '{"input":1,"orchestration":"o","version":"1.0.0"}'
    with pytest.raises(NotSerializable):
        decode_task("[]")


def test_errors_are_described_whatever_they_are() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert describe_error(ValueError("no")) == ("ValueError", "no")
    assert describe_error(Broken()) == ("Broken", "(its text could not be read)")
    assert len(describe_error(ValueError("x" * 100_000))[1].encode()) <= 16 * 1024


# --- depth ----------------------------------------------------------------------------------------------------------


def nested(depth: int, innermost: object = "[") -> Any:
    value = innermost
    for level in range(depth):
        value = [value] if level % 2 else {"x": value}
    return value


@pytest.mark.parametrize("innermost", ["[", None, 1])
def test_what_can_be_written_can_be_read_in_every_envelope(innermost: object) -> None:
    codec = Codec(Any, "it")
    text = codec.encode(nested(MAX_PAYLOAD_DEPTH, innermost))
    for event in (
        ev.EventRaised("x", text),
        ev.OrchestrationStarted("x", "1", text, None, (ev.CarriedEvent("x", text),)),
        ev.ContinuedAsNew(text, None, (ev.CarriedEvent("x", text),)),
    ):
        assert decode_message(encode_message(1, event)) == (1, event)
    assert decode_task(encode_task(ActivityTask(text, "o", "1"))).input == text


@pytest.mark.parametrize("innermost", ["[", None, 1])
@pytest.mark.parametrize("depth", [MAX_PAYLOAD_DEPTH + 1, JSON_DEPTH, 220, 250])
def test_what_is_nested_too_deep_is_refused_where_it_is_written(depth: int, innermost: object) -> None:
    with pytest.raises(PayloadTooLarge, match=f"it is nested more than {MAX_PAYLOAD_DEPTH} deep"):
        Codec(Any, "it").encode(nested(depth, innermost))


def test_many_brackets_are_not_depth() -> None:
    text = Codec(Any, "it").encode([["[" * 1000]] * 1000)
    assert decode_event(encode_event(ev.EventRaised("x", text))) == ev.EventRaised("x", text)


def test_how_deep_json_is_read() -> None:
    """The library's limit is where our own is derived from."""
    read_json("[" * JSON_DEPTH + "1" + "]" * JSON_DEPTH)
    with pytest.raises(NotSerializable):
        read_json("[" * (JSON_DEPTH + 1) + "1" + "]" * (JSON_DEPTH + 1))


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"timer_created","delay":1' + "0" * 400 + "}",
        '{"type":"activity_scheduled","name":"x","input":1,"retry":7}',
        '{"type":"activity_scheduled","name":"x","input":1,"retry":{"max_attempts":{}}}',
        '{"type":"orchestration_started","name":"x","version":"1","input":1,"carried":7}',
        '{"type":"orchestration_started","name":"x","version":"1","input":1,"carried":[{}]}',
        '{"type":"orchestration_started","name":"x","version":"1","input":1,"parent":[]}',
        '{"type":"orchestration_started","name":"x","version":"1","input":1,'
        '"parent":{"instance_id":"\\u0000","execution_id":1,"schedule_id":1}}',
        '{"type":"event_awaited","name":"x","hold":"y"}',
        '"\udcff"',
    ],
)
def test_whatever_a_row_holds_is_refused_by_name(text: str) -> None:
    with pytest.raises(NotSerializable):
        decode_event(text)
