"""PostgreSQL: with each function that runs with the owner's rights, a role says what it may say, and nothing else.

The table has each such function that a client may execute; the catalogue says which these are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from datetime import timedelta
from importlib.resources import files
from typing import Any, Final, LiteralString

import psycopg
import pytest
from psycopg import sql
from psycopg.errors import InsufficientPrivilege
from pydantic import BaseModel

from affinity import ActivityContext, App, Client, Conversations, OrchestrationContext, Wake, Worker
from affinity.conversation import AgentMessage, UserMessage, events
from affinity.conversation.events import EventTypes
from affinity.conversation.journal import JournalCreation
from affinity.conversation.kinds import WAKE_MESSAGE, start_of
from affinity.conversation.store.postgres.lineage import creation_document
from affinity.errors import AccessDenied, InvalidId, OrchestrationCancelled
from affinity.flow.store.contract import START_ACTIVITY, START_EXECUTION, limits_of
from affinity.limits import MAX_PAYLOAD_BYTES, MAX_UNREAD_EVENTS
from affinity.orchestration import events as history
from affinity.orchestration.wire import encode_message
from affinity.provider import change_rights
from affinity.provider.contract import WorkKey
from tests.provider.roles import CLIENT, DEFINERS, READER, SCALER, WORKER, as_role
from tests.support.limits import stage

pytestmark = pytest.mark.anyio


class Chat(BaseModel):
    """The state of a conversation."""


support = Conversations(Chat, kind="support")
app = App("rights")


@support.on_wake
async def respond(wake: Wake, chat: Chat) -> None:
    wake.append(AgentMessage("how can I help?"))


app.include(support)


@app.activity
async def charge(_: ActivityContext, cents: int) -> str:
    return "paid"


@app.orchestration
async def buy(ctx: OrchestrationContext, cents: int) -> str:
    return await ctx.schedule_activity(charge, cents).with_tag("no-worker-has-it")


def _sample(cls: type[Any]) -> Any:
    """A record with all fields, of their types."""
    values: dict[str, Any] = {
        "RawJson": "1", "str": "support.conversation", "int": 2, "float": 1.0, "bool": True, "Lineage": (),
        "Hold": history.Hold("s", 1.0), "ParentRef": history.ParentRef("i", 1, 2, "g"), "ActivityFailureKind": "failed",
        "ChildFailureKind": "failed", "RetryPolicy": None, "Carried": (), "ErrorDetails": None,
        "Labels": {"tenant": "acme"},
    }  # fmt: skip
    return cls(
        **{
            field.name: values[str(field.type).removesuffix(" | None")]
            for field in fields(cls)
            if field.default is MISSING
        }
    )


def _labelled(labels: str | None) -> str:
    """The message of a start with these labels, as JSON."""
    named = "" if labels is None else f',"labels":{labels}'
    return f'{{"execution":0,"event":{{"type":"orchestration_started","name":"flow","version":"","input":1{named}}}}}'


_MANY: Final = "{" + ",".join(f'"{n}":"x"' for n in range(33)) + "}"

RAISED: Final = '{"execution":0,"event":{"type":"event_raised","name":"e","data":1}}'
MESSAGES: Final[Mapping[str, str]] = {
    **{cls.__name__: encode_message(0, _sample(cls)) for cls in history.EVENTS},
    "to an execution": encode_message(1, history.EventRaised("e", "1")),
    "a reserved event": encode_message(0, history.EventRaised("affinity:session_moved:s", "{}")),
    "an event with a run": RAISED[:-1] + ',"worker":"w","attempt":1}',
    "an event with a move": RAISED[:-1] + ',"move":{"epoch":1}}',
    "of two types": '{"execution":0,"event":{"type":"event_raised","name":"e","data":1,"type":"timer_fired"}}',
    "without data": '{"execution":0,"event":{"type":"event_raised","name":"e"}}',
    "of another type": '{"execution":0,"event":{"type":"event_raised","name":"e","data":1,"key":7}}',
    "a start with a parent": encode_message(
        0, history.OrchestrationStarted("flow", "", "1", parent=history.ParentRef("i", 1, 2, "g"))
    ),
    "a start with events": encode_message(
        0, history.OrchestrationStarted("flow", "", "1", carried=(history.CarriedEvent("e", "1"),))
    ),
    "a start of another": encode_message(0, history.OrchestrationStarted("other", "", "1")),
    "a plain start": encode_message(0, history.OrchestrationStarted("flow", "", "1")),
    "an event with headers": encode_message(0, history.EventRaised("e", "1", headers={"tenant": "ü" * 2_000})),
    "headers that are none": RAISED[:-2] + ',"headers":["a"]}}',
    "a header that is no text": RAISED[:-2] + ',"headers":{"a":1}}}',
    "a header without a name": RAISED[:-2] + ',"headers":{"":"a"}}}',
    "a header with a line": RAISED[:-2] + ',"headers":{"a":"b\\nc"}}}',
    "headers that are large": RAISED[:-2] + f',"headers":{{"a":"{"x" * 4096}"}}}}}}',
    "many headers": RAISED[:-2] + f',"headers":{json.dumps(dict.fromkeys(map(str, range(33)), ""))}}}}}',
    "a start with headers": encode_message(0, history.OrchestrationStarted("flow", "", "1", headers={"a": "b"})),
    "no JSON": "{",
    "no object": "[]",
    "a lone surrogate": encode_message(0, history.EventRaised("e", '"\\ud800"')),
    "too deep": encode_message(0, history.EventRaised("e", "[" * 250 + "]" * 250)),
    "too many digits": encode_message(0, history.EventRaised("e", "1" * 5000)),
    "too large": encode_message(0, history.EventRaised("e", '"' + "x" * 4_000_000 + '"')),
    "a mark as a name": encode_message(0, history.EventRaised("e", '{"$SEQ":1}')),
}  # fmt: skip
SAID: Final = frozenset({"EventRaised", "CancelRequested", "an event with headers"})
STARTS: Final = frozenset({"a plain start", "a start with headers"})


KINDS: Final = sorted(EventTypes().types)
INPUTS: Final = frozenset(kind for kind in KINDS if kind.startswith("user."))
ANSWERS: Final = {
    "user.tool_confirmation": "agent.tool_confirmation",
    "user.custom_tool_result": "agent.custom_tool_use",
}
IDS: Final[Mapping[str, str]] = {
    "an empty id": "",
    "a long id": "x" * 257,
    "a control character": "a\nb",
    "an id": "ü" * 128,
}
DESCRIPTIONS: Final[Mapping[str, Mapping[str, object]]] = {
    "a title": {"title": "t", "owner": None, "labels": {"a": "b"}},
    "nothing": {},
    "labels that are none": {"labels": ["a"]},
    "no labels": {"labels": None},
    "a label that is no text": {"labels": {"a": 1}},
    "a long title": {"title": "x" * 1025},
    "an owner that is no id": {"owner": ""},
    "another column": {"closed": True},
}
DESCRIBED: Final = frozenset({"a title", "nothing"})
REQUEST: Final = '{"kind":"agent.tool_confirmation","tool":"refund","request_id":"r"}'

Said = Mapping[str, Sequence[object]]
"""The arguments of a call, by what is said with them."""


@dataclass(frozen=True)
class Function:
    """What a client tries to say with a function.

    Args:
        call: the statement.
        tries: its parameters.
        allowed: names of the tries that pass.
    """

    call: LiteralString
    tries: Said
    allowed: frozenset[str]


def _entry(kind: str, **more: object) -> str:
    return json.dumps({"kind": kind, **more})


def _entries() -> Said:
    """An entry's kind and payload, its event id, the answered request and its kind, and what the append does."""
    plain: tuple[object, ...] = ("e", True, None, None, False, False)
    note = ("e", False, None, None)
    found: dict[str, Sequence[object]] = {
        f"input {kind}": (kind, _entry(kind, request_id="r", status="running"), *plain) for kind in KINDS
    }
    found |= {f"note {kind}": (kind, _entry(kind, status="running"), *note, False, False) for kind in KINDS}
    found |= {
        f"answer {kind}": (kind, _entry(kind, request_id="r"), "e", True, "r", asked, False, False)
        for kind, asked in ANSWERS.items()
    }
    one, status, end = "user.message", "conversation.status_changed", "child.ended"

    def confirmation(request_id: str) -> tuple[str, str]:
        return "user.tool_confirmation", _entry("user.tool_confirmation", request_id=request_id)

    def again(delegation: str) -> tuple[object, ...]:
        return end, _entry(end, delegation=delegation, _={"trace": "t"}), "retry/w/0", *plain[1:]

    return found | {
        "an event of the application": ("order.paid", _entry("order.paid"), *plain),
        "an interrupt": ("user.interrupt", _entry("user.interrupt"), "e", True, None, None, True, False),
        "an end": (status, _entry(status, status="terminated"), *note, True, True),
        "an end that ends nothing": (status, _entry(status, status="terminated"), *note, False, False),
        "an end that says nothing": (status, _entry(status, status="running"), *note, True, True),
        "a status of a wake": (status, _entry(status, status="rescheduling"), *note, False, False),
        "an input that drops": (one, _entry(one), "e", True, None, None, True, False),
        "an input that closes": (one, _entry(one), "e", True, None, None, False, True),
        "an answer to another": (*confirmation("x"), "e", True, "r", "agent.tool_confirmation", False, False),
        "an answer of another kind": (*confirmation("r"), "e", True, "r", "agent.custom_tool_use", False, False),
        "another kind within": (one, _entry("agent.message"), *plain),
        "a trace": (one, _entry(one, _={"trace": "t"}), *plain),
        "headers": (one, _entry(one, _={"trace": "t", "headers": {"a": "b"}}), *plain),
        "headers of no text": (one, _entry(one, _={"headers": {"a": ["b"]}}), *plain),
        "a delegation": (one, _entry(one, _={"delegation": "d", "parent": "talk"}), *plain),
        "no object": (one, "7", *plain),
        "no JSON": (one, "{", *plain),
        "the id of an end": (one, _entry(one), "child.ended/d", *plain[1:]),
        "the id of a delegation": (one, _entry(one), "delegation/d", *plain[1:]),
        "an end that is no dead letter": again("d"),
        "a dead letter": again("dead"),
    }  # fmt: skip


ENTRIES: Final = _entries()
ENTERED: Final = frozenset(
    {
        *[f"input {kind}" for kind in INPUTS - ANSWERS.keys() - {"user.interrupt"}],
        *[f"answer {kind}" for kind in ANSWERS],
        *("note conversation.status_changed", "an end", "an event of the application", "an interrupt", "a trace"),
        "headers",
        "a dead letter",
    }
)
PLAIN: Final = encode_message(0, history.OrchestrationStarted("flow", "", "1"))
START: Final = start_of("support")


def _creation(**fields: object) -> Sequence[object]:
    creation = JournalCreation(
        session_id="new", kind="support", start=START, lineage=None, operator="", message=WAKE_MESSAGE
    )
    return (json.dumps({**creation_document(creation), **fields}),)


def _schedule(**fields: object) -> str:
    row = {"n": 1, "removed": False, "name": "s", "generation": "g", "revision": 0, "spec": "{}", "skipped": 0}
    return json.dumps([{**row, **fields}])


GATES: Final = {
    "no gate": None,
    "a priority": "[5]",
    "limits": '[0,["model","",1,1.0],["tenant","acme",2,3.5]]',
    "no JSON": "[",
    "an object": "{}",
    "nothing": "[]",
    "a priority below 0": "[-1]",
    "a priority above all": "[1001]",
    "half a priority": "[0.5]",
    "a limit without a name": '[0,["","",1,1.0]]',
    "a limit without units": '[0,["model","",null,1.0]]',
    "a weight of nothing": '[0,["model","a",1,0]]',
    "nine limits": json.dumps([0, *([["model", str(n), 1, 1.0] for n in range(9)])]),
}

FUNCTIONS: Final[Mapping[str, Sequence[Function]]] = {
    "client_send_messages": [
        Function(call, {name: (text,) for name, text in MESSAGES.items()}, SAID | {"a mark as a name"})  # of journals
        for call in (
            "client_send_messages('{i}', '{NULL}', ARRAY[%s], '{NULL}', '{NULL}')",
            "client_send_messages('{i}', '{NULL}', ARRAY[%s], '{NULL}', '{k}')",
        )
    ],
    "client_create_instances": [
        Function(
            "client_create_instances('{n}', '{g}', '{flow}', '{NULL}', ARRAY[%s], '{0}', '{NULL}',"
            " _labels => ARRAY[%s]::text[])",
            {
                "labels": (_labelled('{"a":"b"}'), '{"a":"b"}'),
                "without labels": (_labelled(None), None),
                "other labels": (_labelled('{"a":"b"}'), '{"a":"c"}'),
                "labels in the message only": (_labelled('{"a":"b"}'), None),
                "labels in the row only": (_labelled(None), '{"a":"b"}'),
                "a number": (_labelled('{"a":1}'), '{"a":1}'),
                "an array": (_labelled("[]"), "[]"),
                "an empty key": (_labelled('{"":"b"}'), '{"":"b"}'),
                "too many": (_labelled(_MANY), _MANY),
            },
            frozenset({"labels", "without labels"}),
        ),
        Function(
            "client_create_instances('{n}', '{g}', '{flow}', '{NULL}', ARRAY[%s], '{0}', '{NULL}')",
            {name: (text,) for name, text in MESSAGES.items()},
            STARTS,
        ),
        Function(
            "client_create_instances(ARRAY[%s], '{g}', '{flow}', '{NULL}', ARRAY[%s], '{0}', '{NULL}')",
            {name: (text, PLAIN) for name, text in IDS.items()},
            frozenset({"an id"}),
        ),
        Function(
            "client_create_instances('{n}', '{g}', '{flow}', '{NULL}', ARRAY[%s], '{0}', '{NULL}', ARRAY[%s])",
            {name: (PLAIN, text) for name, text in GATES.items()},
            frozenset({"no gate", "a priority", "limits"}),
        ),
    ],
    "admit_work": [Function("admit_work(%s)", {"a number": (5,)}, frozenset({"a number"}))],
    "change_limits": [
        Function(
            "change_limits(%s::jsonb)",
            {
                "a bound": ('[{"limit": "model", "concurrency": 5}]',),
                "a pause of a key": ('[{"limit": "model", "key": "acme", "paused": true, "by": "ann"}]',),
                "a negative bound": ('[{"limit": "model", "concurrency": -1}]',),
                "a rate without time": ('[{"limit": "model", "rate": [5, 0, null]}]',),
                "a ramp that falls": ('[{"limit": "model", "paused": false, "ramp": -1}]',),
                "a long key": (json.dumps([{"limit": "model", "key": "k" * 257, "paused": True}]),),
            },
            frozenset({"a bound", "a pause of a key"}),
        )
    ],
    "keep_exported_blobs": [
        Function("keep_exported_blobs(ARRAY[%s])", {"a digest": ("a" * 64,)}, frozenset({"a digest"}))
    ],
    "client_restart_instances": [
        Function(
            "client_restart_instances('{ended}', '{g}', '{h}', '{flow}', '{NULL}', ARRAY[%s], '{NULL}')",
            {name: (text,) for name, text in MESSAGES.items()},
            STARTS,
        )
    ],
    "client_append_input": [
        Function(
            "client_append_input('talk', 'support', 'user.message', '{}', 'e', %s, NULL)",
            {name: (text,) for name, text in MESSAGES.items()},
            SAID,
        ),
        Function(
            "client_append_input('talk', 'support', %s, %s, %s, %s, NULL)",
            {
                name: (*said[:3], WAKE_MESSAGE)
                for name, said in ENTRIES.items()
                if said[3:] == (True, None, None, False, False)
            },
            ENTERED,
        ),
    ],
    "client_append_journals": [
        Function(
            "client_append_journals('{talk}', '{support}', '{user.message}', ARRAY['{}'], '{e}', '{true}', ARRAY[%s], "
            "'{NULL}')",
            {name: (text,) for name, text in MESSAGES.items()},
            SAID,
        ),
        Function(
            "client_append_journals('{new}', '{support}', '{user.message}', ARRAY['{}'], '{e}', '{true}', ARRAY[%s],"
            " '{NULL}', _start_name => '{flow}', _start => ARRAY[%s], _start_generation => '{g}',"
            " _start_version => '{NULL}',"
            " _start_journal => '{77}')",
            {name: (WAKE_MESSAGE, text) for name, text in MESSAGES.items()},
            STARTS,
        ),
        Function(
            "client_append_journals('{talk}', '{support}', ARRAY[%s], ARRAY[%s], ARRAY[%s], ARRAY[%s], ARRAY[%s],"
            " '{NULL}', _answer => ARRAY[%s::text], _answer_kind => ARRAY[%s::text], _drops => ARRAY[%s],"
            " _closes => ARRAY[%s])",
            {name: (*said[:4], WAKE_MESSAGE, *said[4:]) for name, said in ENTRIES.items()},
            ENTERED,
        ),
        Function(
            "client_append_journals('{new}', '{support}', '{user.message}', ARRAY['{}'], '{e}', '{true}', ARRAY[%s],"
            " '{NULL}', _start_name => '{flow}', _start => ARRAY[%s], _start_generation => '{g}',"
            " _start_version => '{NULL}',"
            " _start_journal => '{77}', _start_about => ARRAY[%s])",
            {name: (WAKE_MESSAGE, PLAIN, json.dumps(about)) for name, about in DESCRIPTIONS.items()},
            DESCRIBED,
        ),
    ],
    "client_create_journal": [
        Function(
            "client_create_journal(%s)",
            {
                "a conversation": _creation(),
                "a fork": _creation(base_id=5, parents=[5], copies_state=True),
                "a fork with a request": _creation(
                    base_id=5,
                    parents=[5],
                    base_seq=2,
                    requests=[["r", "agent.tool_confirmation", REQUEST, "w", 1, "2020-01-01"]],
                ),
                "a request that none has made": _creation(
                    base_id=5,
                    parents=[5],
                    base_seq=2,
                    requests=[["r", "agent.tool_confirmation", "{}", "w", 1, "2020-01-01"]],
                ),
                "a request under another id": _creation(
                    base_id=5,
                    parents=[5],
                    base_seq=2,
                    requests=[["q", "agent.tool_confirmation", REQUEST, "w", 1, "2020-01-01"]],
                ),
                "of another kind": _creation(base_id=5, parents=[5], kind="sales"),
                "a summary": _creation(parents=[5], entries=[["user.message", "{}", None, None, False, None]]),
                "words of the agent": _creation(
                    parents=[5], entries=[["agent.message", "{}", None, None, False, None]]
                ),
                "an entry of a wake": _creation(parents=[5], entries=[["user.message", "{}", None, "w", False, None]]),
                "an entry of the past": _creation(
                    parents=[5], entries=[["user.message", "{}", None, None, False, "2020-01-01"]]
                ),
                "wakes": _creation(wakes=[[1, "w", 0, 0, 1, "done", "", 1, None]]),
                "a watermark": _creation(processed=5),
                "a child": _creation(parent="talk"),
                "a wake's": _creation(of_wake=True),
                "a state": _creation(state="e30="),
                "extras that are none": _creation(extras="["),
                **{f"message {name}": _creation(message=text) for name, text in MESSAGES.items()},
                **{f"start {name}": _creation(name="flow", start=text) for name, text in MESSAGES.items()},
                **{f"about {name}": _creation(about=about) for name, about in DESCRIPTIONS.items()},
                **{f"named by {name}": _creation(session_id=text) for name, text in IDS.items()},
            },
            frozenset(
                {
                    "a conversation",
                    "a fork",
                    "a fork with a request",
                    "a summary",
                    "a wake's",
                    "named by an id",
                    *[f"message {name}" for name in SAID],
                    *[f"start {name}" for name in STARTS],
                    *[f"about {name}" for name in DESCRIBED],
                }
            ),
        )
    ],
    "describe_journal": [
        Function(
            "describe_journal('talk', 'support', %s)",
            {name: (json.dumps(about),) for name, about in DESCRIPTIONS.items()},
            DESCRIBED,
        )
    ],
    "client_write_schedules": [
        Function(
            "client_write_schedules(%s, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')",
            {
                "a schedule": (_schedule(),),
                "a schedule that is there": (_schedule(name="declared", revision=1, app="shop", code="1"),),
                "a schedule of code": (_schedule(app="shop", code="1"),),
                "another code": (_schedule(name="declared", revision=1, app="shop", code="2"),),
                "no code": (_schedule(name="declared", revision=1),),
                "a spec that is none": (_schedule(spec="["),),
                "no spec": (_schedule(spec=None),),
                "a long name": (_schedule(name="x" * 181),),
            },
            frozenset({"a schedule", "a schedule that is there"}),
        ),
        Function(
            "client_write_schedules(%s, '{1}', '{n}', '{g}', '{flow}', '{NULL}', ARRAY[%s], '{0}', '{NULL}')",
            {
                name: (_schedule(name="declared", revision=1, app="shop", code="1"), text)
                for name, text in MESSAGES.items()
            },
            STARTS,
        ),
    ],
    "write_audit": [  # the entry names the role beside the user that the caller states
        Function(
            "write_audit(%s)",
            {"an entry": ("[]",), "no JSON": ("[",)},
            frozenset({"an entry"}),
        )
    ],
    "read_timeline": [Function("read_timeline()", {"nothing": ()}, frozenset({"nothing"}))],
}

PREPARE: Final[Sequence[tuple[LiteralString, Sequence[object]]]] = (
    (
        "SELECT create_instances('{i,ended,talk}', '{g,g,g}', '{flow,flow,support.conversation}', '{NULL,NULL,NULL}',"
        " '{x,x,x}')",
        (),
    ),
    ("UPDATE instances SET status = 'completed' WHERE instance_id = 'ended'", ()),
    (
        "INSERT INTO journals (journal_id, session_id, kind, last_seq, oldest_at, created_at, updated_at)"
        " VALUES (5, 'talk', 'support', 4, now(), now(), now())",
        (),
    ),
    (
        "INSERT INTO journal_entries (journal_id, seq, recorded_at, is_input, kind, wake_id, payload)"
        " VALUES (5, 1, now(), false, 'agent.tool_confirmation', 'w', %s),"
        " (5, 2, now(), true, 'child.ended', NULL, %s),"
        " (5, 3, now(), true, 'child.ended', NULL, %s), (5, 4, now(), false, 'conversation.dead_letters', 'w', %s)",
        (
            REQUEST,
            _entry("child.ended", delegation="dead"),
            _entry("child.ended", delegation="d"),
            _entry("conversation.dead_letters", inputs=[2]),
        ),
    ),
    *[
        (
            "INSERT INTO journal_requests (journal_id, request_id, kind, seq, place, created_at, payload)"
            " SELECT 5, %s, %s, 1, 1, now(), '{}' WHERE %s = 'agent.tool_confirmation'",
            ("r", kind, kind),
        )
        for kind in ANSWERS.values()
    ],
    (
        "INSERT INTO schedules (name, generation, revision, spec, app, code, skipped, created_at, updated_at)"
        " VALUES ('declared', 'g', 1, '{}', 'shop', '1', 0, now(), now())",
        (),
    ),
)


@pytest.fixture
async def url(postgres_migrated: str, admin: psycopg.Connection[Any]) -> str:
    await change_rights(postgres_migrated, clients=[CLIENT], workers=[WORKER], scalers=[SCALER], readers=[READER])
    for statement, params in PREPARE:
        admin.execute(statement, params or None)
    return postgres_migrated


@contextmanager
def _as(url: str, role: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(as_role(url, role), options="-c search_path=affinity") as connection:
        yield connection


def _may_say(connection: psycopg.Connection[Any], call: LiteralString, params: Sequence[object]) -> bool:
    """Whether the call passes; it is undone."""
    try:
        connection.execute(sql.SQL("SELECT ") + sql.SQL(call), params or None)
    except (InsufficientPrivilege, psycopg.DataError):
        return False
    finally:
        connection.rollback()
    return True


@pytest.mark.parametrize("name", FUNCTIONS)
async def test_a_client_says_what_a_client_may_say(url: str, name: str) -> None:
    """With every kind of message, start, entry and description."""
    with _as(url, CLIENT) as client:
        for function in FUNCTIONS[name]:
            said = {what for what, params in function.tries.items() if _may_say(client, function.call, params)}
            assert said == function.allowed & function.tries.keys(), function.call


@pytest.mark.parametrize("text", ["[1]", '"hi"', "1", "null", None])
async def test_a_payload_that_is_no_object_is_named_so(url: str, text: str | None) -> None:
    """Not as a message of another execution, or as an entry of wakes."""
    append = "client_append_journals('{talk}', '{support}', ARRAY[%s], ARRAY[%s], '{e}', ARRAY[%s], '{NULL}', '{10}')"
    calls: Sequence[tuple[LiteralString, Sequence[object]]] = (
        ("client_send_messages('{i}', '{g}', ARRAY[%s], '{NULL}', '{NULL}')", [text]),
        ("client_create_instances('{n}', '{g}', '{flow}', '{NULL}', ARRAY[%s], '{0}', '{NULL}')", [text]),
        ("client_append_input('talk', 'support', 'user.message', %s, 'e', '{}', 10)", [text]),
        (append, ["user.message", text, True]),
        (append, ["conversation.status_changed", text, False]),
    )
    with _as(url, CLIENT) as client:
        for call, params in calls:
            with pytest.raises(InsufficientPrivilege, match="no JSON object"):
                client.execute(sql.SQL("SELECT ") + sql.SQL(call), params)
            client.rollback()


async def test_other_roles_say_nothing(url: str) -> None:
    """A reader and an autoscaler may call none of these functions, but for the timeline."""
    for role, allowed in ((READER, {"read_timeline"}), (SCALER, set[str]())):
        with _as(url, role) as connection:
            said = {
                name
                for name, functions in FUNCTIONS.items()
                for function in functions
                for params in function.tries.values()
                if _may_say(connection, function.call, params)
            }
            assert said == allowed, role


async def test_a_client_changes_limits_and_a_reader_looks_at_them(url: str) -> None:
    """With all that the command and the console show."""
    async with Client(url) as owner:
        await stage(owner._provider)
    async with Client(as_role(url, CLIENT)) as client:
        assert (await client.limits.set("model", concurrency=3)).waiting == 0
        with client.acting_as("ann"):
            await client.limits.pause("tenant", key="acme")
            await client.limits.resume("tenant", key="acme")
            await client.limits.reset("tenant")
    async with Client(as_role(url, READER)) as reader:
        assert [limit.name for limit in await reader.limits.list()] == ["model", "tenant"]
        assert [key.key for key in await reader.limits.keys("tenant")] == ["acme", "tiny"]
        (wait,) = await limits_of(reader._provider).get_limit_waits([WorkKey("t-2", START_EXECUTION, START_ACTIVITY)])
        assert (wait.limit, wait.limit_key, wait.cause) == ("tenant", "tiny", "concurrency")
        with pytest.raises(AccessDenied):
            await reader.limits.pause("model")
        assert (await reader.limits.get("model")).status == "open"


async def test_the_table_has_each_function(url: str, admin: psycopg.Connection[Any]) -> None:
    """All that run with the owner's rights; a role other than a worker writes to no table without them."""
    assert {name for (name,) in admin.execute(DEFINERS, [CLIENT])} == FUNCTIONS.keys()
    writes = "INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER"
    for role in (CLIENT, READER, SCALER, "public"):
        found = admin.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'affinity'::regnamespace AND relkind IN ('r', 'v', 'p')"
            " AND (has_table_privilege(%s, oid, %s) OR has_any_column_privilege(%s, oid, 'INSERT, UPDATE'))",
            [role, writes, role],
        )
        assert found.fetchall() == [], role
    of_worker = {name for (name,) in admin.execute(DEFINERS, [WORKER])}
    of_limits = {
        "charge_limits", "close_limits", "declare_limits", "pass_gates", "remove_unused_limit_keys", "return_slots"
    }  # fmt: skip
    assert of_worker == FUNCTIONS.keys() | of_limits | {"establish_timeline", "remove_audit"}


async def test_the_bounds_of_the_schema_are_those_of_the_library() -> None:
    """Numbers and kinds stand in the schema, too."""
    clients = ("provider/postgres/schema/12_clients.sql", "conversation/store/postgres_schema/02_clients.sql")
    text = "".join((files("affinity") / file).read_text() for file in clients)
    assert f"least(_unread_limit, {MAX_UNREAD_EVENTS})" in text
    assert MAX_PAYLOAD_BYTES < 3 * 2**20
    assert str(3 * 2**20) in text
    (kinds,) = re.findall(r"_kind ~ '\^\(([a-z|]+)\)\\\.'", text)
    assert {f"{kind}." for kind in kinds.split("|")} == set(events._NO_INPUT)


async def summary(entries: Sequence[object]) -> str:
    return f"{len(entries)} entries"


async def test_a_client_role_converses(url: str) -> None:
    """All that the documents give a client, through the library: nothing of it is refused."""
    async with Worker(app, as_role(url, WORKER)), Client(as_role(url, CLIENT)) as client:
        bought = await client.start(buy, 100)
        await bought.cancel()
        with pytest.raises(OrchestrationCancelled):
            await bought.wait(timeout=20)
        again = await client.start(buy, 100, instance_id=bought.instance_id, if_ended="restart")
        await again.raise_event("more", {"a": "\0", "b": [1.5, None]}, idempotency_key="k")
        chat = client.conversation(support, "chat")
        await chat.create(title="tea", labels={"team": "a"})
        await chat.describe(title="more tea", owner="ann")
        await chat.ask(UserMessage("hi"), timeout=20)
        await chat.interrupt(cancel_running=True)
        fork = await chat.fork("fork")
        await chat.fork("early", at=2)
        await fork.ask(UserMessage("hi"), event_id="m-1", timeout=20)
        await chat.merge("fork", into="merged")
        await chat.compress(into="short", summarise=summary)
        await chat.terminate(reason="done")
        await client.schedules.create("daily", buy, input=1, every=timedelta(days=1))
        await client.schedules.pause("daily")
        await client.schedules.resume("daily")
        await client.schedules.trigger("daily")
        await client.schedules.delete("daily")
        with pytest.raises(InvalidId, match="conversations give themselves"):
            await fork.send(UserMessage("hi"), event_id="child.ended/x")
