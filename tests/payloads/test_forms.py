"""The forms of stored values, without a database."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from affinity.errors import PayloadUnreadable
from affinity.orchestration.events import EVENTS
from affinity.payloads import forms
from affinity.payloads.frames import Frame, is_frame, read_frame

ENTRY = (
    '{"content":"secret","usage":{"tokens":3},"request_id":"r","kind":"agent.message",'
    '"_":{"trace":"00-1","spans":["secret"]}}'
)
VALUES: list[tuple[forms.Form, str]] = [
    ("json", '{"a":"secret"}'),
    ("json", '"secret"'),
    ("text", "secret"),
    ("event", '{"type":"activity_completed","schedule_id":1,"result":"secret"}'),
    ("event", '{"type":"custom_status_set","value":"secret"}'),
    ("event", '{"type":"of_a_later_release","name":"n","more":"secret"}'),
    ("event", "secret, no JSON"),
    ("message", '{"execution":0,"event":{"type":"event_raised","name":"n","data":["secret"]},"attempt":1}'),
    ("task", '{"input":"secret","orchestration":"o","version":"1"}'),
    ("object", '{"a":"secret"}'),
    ("entry", ENTRY),
    ("entry", '{"kind":"conversation.status_changed","status":"running","reason":"secret"}'),
    ("entry", '[1,"secret"]'),
]


def put(data: bytes, field: str) -> str:
    return Frame("scope", "label", data[::-1]).text


def get(frame: str | bytes, field: str) -> bytes:
    return read_frame(frame).body[::-1]


def refuse(event: str | None) -> None:
    raise PayloadUnreadable(f"plain: {event}")


@pytest.mark.parametrize(("form", "value"), VALUES)
def test_a_value_is_read_back_and_hides_its_payload(form: forms.Form, value: str) -> None:
    stored = forms.encode(form, value, "field", put)
    assert "secret" not in stored
    assert forms.decode(form, stored, "field", get, refuse) == value
    with pytest.raises(PayloadUnreadable, match="plain"):
        forms.decode(form, value, "field", get, refuse)
    assert forms.decode(form, value, "field", get, lambda event: None) == value


def test_what_the_database_reads_of_an_entry_stays_in_the_clear() -> None:
    stored: dict[str, Any] = forms._read(forms.encode("entry", ENTRY, "field", put)) or {}
    assert is_frame(stored.pop("~"))
    assert stored == {"usage": {"tokens": 3}, "request_id": "r", "kind": "agent.message"}


def test_a_word_that_the_database_puts_into_an_entry_is_read() -> None:
    stored = forms.encode("entry", '{"error":{"message":"\\u001a"}}', "field", put)
    assert '"\\u001a"' in stored
    told = stored.replace('"\\u001a"', '"full"')
    assert forms.decode("entry", told, "field", get, refuse) == '{"error":{"message":"full"}}'


def test_each_field_of_each_event_is_encoded_or_has_a_reason() -> None:
    """A new field is in one of two lists."""
    assert not forms.SECRET_FIELDS & forms.PLAIN_FIELDS.keys()
    for event in EVENTS:
        names = {column.name for column in fields(event)}
        assert names - forms.secret_fields(event) - {"value"} <= forms.PLAIN_FIELDS.keys(), event
    used = {column.name for event in EVENTS for column in fields(event)}
    assert used >= forms.SECRET_FIELDS


def test_a_damaged_frame_is_refused() -> None:
    whole = put(b"secret", "field")
    for damaged in (whole[:9], whole.replace(".", ""), whole + ".", whole[:-3] + "!!!"):
        with pytest.raises(PayloadUnreadable):
            read_frame(damaged)


def test_a_name_that_looks_like_a_frame_is_a_name() -> None:
    event = '{"type":"event_raised","name":"~afp1.go","data":"secret"}'
    stored = forms.encode("event", event, "field", put)
    assert forms.decode("event", stored, "field", get, refuse) == event
