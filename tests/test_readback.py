"""What a reader gets equals what was given, or the write is refused with its place: kinds of values by places."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from math import inf, nan
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Json,
    PlainSerializer,
    PrivateAttr,
    SecretStr,
    computed_field,
    create_model,
)
from typing_extensions import TypedDict

import affinity
from affinity.agent.tools import tool
from affinity.conversation.events import EventTypes, JournalEvent
from affinity.errors import AffinityError, NotSerializable
from affinity.orchestration.codec import Codec
from affinity.readback import MAX_DIGITS, conform, find_loss, json_of
from affinity.session.stores import MemorySessionStore
from affinity.testing import Env

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


class Message(BaseModel):
    text: str = ""


class ToolMessage(Message):
    call_id: str = ""


class SameFields(Message):
    pass


class Tree(BaseModel):
    children: list[Tree] = []
    note: Message | None = None


class Aliased(BaseModel):
    number: int = Field(default=1, alias="the-number")


class WithTotal(BaseModel):
    model_config = ConfigDict(extra="forbid")
    parts: list[int] = []

    @computed_field
    def total(self) -> int:
        return sum(self.parts)


class Scratch(BaseModel):
    kept: int = 0
    left_out: int = Field(default=7, exclude=True)
    _private: int = PrivateAttr(default=3)


class Needed(BaseModel):
    left_out: int = Field(exclude=True)


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


class Short(BaseModel):
    text: str = Field(default="", max_length=3)


@dataclass
class Plain:
    n: int = 0


@dataclass
class Derived(Plain):
    more: int = 0


@dataclass
class Counted:
    n: int = 0
    made: int = dataclasses.field(init=False, default=3)


class Color(Enum):
    RED = "red"
    PAIR = (1, 2)


class Movie(TypedDict):
    title: str


class Point(NamedTuple):
    x: int
    y: int


def changed(value: Any, **fields: Any) -> Any:
    """The value with these fields, which nothing has checked."""
    for name, field in fields.items():
        object.__setattr__(value, name, field)
    return value


BERLIN: Final = datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
Pet: TypeAlias = Annotated[Cat | Dog, Field(discriminator="kind")]

KEPT: Final[list[tuple[str, Any, Callable[[], Any]]]] = [
    ("text", str, lambda: "a\0\N{SNOWMAN}"),
    ("model", Message, lambda: Message(text="a")),
    ("tree", Tree, lambda: Tree(children=[Tree(note=Message(text="a"))])),
    ("union_of_classes", list[Message | ToolMessage], lambda: [ToolMessage(call_id="7"), Message()]),
    ("discriminated", list[Pet], lambda: [Dog(), Cat()]),
    ("alias", Aliased, lambda: Aliased(**{"the-number": 5})),
    ("computed", WithTotal, lambda: WithTotal(parts=[1, 2])),
    ("json_within_json", create_model("Within", data=(Json[list[int]], ...)), lambda: {"data": "[1, 2]"}),
    ("set", set[int], lambda: {1, 2}),
    ("tuple", tuple[int, str], lambda: (1, "a")),
    ("named_tuple", Point, lambda: Point(1, 2)),
    ("typed_dict", Movie, lambda: Movie(title="a")),
    ("bytes", bytes, lambda: b"abc"),
    ("keys", dict[int, str], lambda: {1: "a", 2: "b"}),
    ("enum", Color, lambda: Color.RED),
    ("dataclass", Plain, lambda: Plain(3)),
    ("zone", datetime, lambda: BERLIN),
    ("decimal", Decimal, lambda: Decimal("1.10")),
    ("id", UUID, lambda: UUID(int=7)),
    ("duration", timedelta, lambda: timedelta(days=-1, microseconds=1)),
    ("digits", int, lambda: 10 ** (MAX_DIGITS - 1)),
    ("many_digits_in_text", str, lambda: "1" * (3 * MAX_DIGITS)),
    ("no_number", float | None, lambda: None),
    ("any", Any, lambda: {"a": [1, 2.5, None, True, "b"], "": {}}),
]
"""Kinds of values that are read back as they were given."""


def contains_itself() -> list[Any]:
    items: list[Any] = []
    items.append({"items": items})
    return items


class Chained(BaseModel):
    next: Any = None


def chained() -> Chained:
    first = Chained()
    first.next = [first]
    return first


class Hostile(dict[str, int]):
    """A class of the application whose methods raise."""

    def __init__(self) -> None:
        super().__init__(a=1)

    def items(self) -> Any:
        raise LookupError("the items of a class")

    def __eq__(self, other: object) -> bool:
        raise LookupError("the items of a class")

    __hash__ = None


REFUSED: Final[list[tuple[str, Any, Callable[[], Any], str]]] = [
    (
        "subclass",
        list[Message],
        lambda: [Message(), ToolMessage()],
        r"\[1\]: ToolMessage is read back as Message",
    ),
    ("subclass_without_fields", Message, SameFields, "SameFields is read back as Message"),
    ("subclass_far_within", Tree, lambda: Tree(children=[Tree(note=ToolMessage())]), r"children\[0\].note: ToolMess"),
    ("dataclass_of_a_subclass", dict[str, Plain], lambda: {"a": Derived(1, 2)}, r"\['a'\]: Derived .*without more"),
    ("secret", SecretStr, lambda: SecretStr("hush"), "the value of a SecretStr is not written"),
    ("secret_in_any", Any, lambda: {"a": [SecretStr("hush")]}, r"\['a'\]\[0\]: the value of a SecretStr"),
    ("nan", float, lambda: nan, "NaN|finite|valid number"),
    ("infinity_or_none", float | None, lambda: inf, "NaN and infinity"),
    ("infinity_in_any", Any, lambda: {"a": [-inf]}, r"\['a'\]\[0\]: NaN|finite"),
    ("digits", Any, lambda: 10 ** (MAX_DIGITS + 700), "number out of range"),
    ("digits_of_int", list[int], lambda: [10 ** (MAX_DIGITS + 700)], "number out of range"),
    ("two_keys_with_one_text", dict[Any, int], lambda: {1: 1, "1": 2}, r"\['1'\]: JSON has one key for several"),
    ("init_is_false", Counted, lambda: changed(Counted(1), made=9), "made: 9 is read back as 3"),
    ("required_and_left_out", Needed, lambda: Needed(left_out=1), "left_out"),
    ("no_longer_valid", Short, lambda: changed(Short(), **{"text": "abcd"}), "at most 3"),
    ("enum_of_a_tuple", Color, lambda: Color.PAIR, "red"),
    ("key_of_no_field", Movie, lambda: {"title": "a", "year": 1999}, "Movie|other keys"),
    ("writes_something_else", Annotated[int, PlainSerializer(lambda n: n + 1)], lambda: 1, "1 is read back as 2"),
    ("contains_itself", Any, contains_itself, "Circular reference"),
    ("model_contains_itself", Chained, chained, "Circular reference"),
    ("class_that_raises", Any, Hostile, "the items of a class"),
    ("iterator_within", dict[str, list[int]], lambda: {"a": iter([1])}, r"\['a'\]: an iterator can be read once"),
]
"""Kinds of values that a reader would not get."""

FORMS: Final[list[tuple[str, Any, Callable[[], Any], Any]]] = [
    ("datetime", Any, lambda: datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
    ("decimal", Any, lambda: [Decimal("1.10")], ["1.10"]),
    ("tuple", Any, lambda: {"a": (1, (2,))}, {"a": [1, [2]]}),
    ("set", Any, lambda: {1}, [1]),
    ("bytes", Any, lambda: b"abc", "abc"),
    ("model", Any, lambda: [ToolMessage(text="a", call_id="7")], [{"text": "a", "call_id": "7"}]),
    ("dataclass", Any, lambda: Derived(1, 2), {"n": 1, "more": 2}),
    ("enum", Any, lambda: Color.PAIR, [1, 2]),
    ("keys", Any, lambda: {1: {2.5: "a"}}, {"1": {"2.5": "a"}}),
    ("id", Any, lambda: UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    ("generator", Any, lambda: (n for n in range(3)), [0, 1, 2]),
    ("default_dict", dict[str, int], lambda: defaultdict(int, a=1), {"a": 1}),
    ("whole_number", float, lambda: 1, 1.0),
]
"""Values for which JSON has a near form: what is read, and what the state in memory is, too."""

ONE_SHOT: Final[dict[str, Callable[[], Iterator[int]]]] = {
    "generator": lambda: (n for n in range(3)),
    "map": lambda: map(int, "012"),
    "filter": lambda: filter(lambda n: n < 3, range(9)),
    "zip": lambda: (n for n, _ in zip(range(3), range(3), strict=True)),
    "iterator": lambda: iter([0, 1, 2]),
}


# --- typed places -----------------------------------------------------------------------------------------------------


async def as_input(declared: Any, value: Any) -> Any:
    def function(ctx: Any, given: Any) -> None: ...

    function.__annotations__["given"] = declared
    definition = affinity.App()
    definition.activity(name="a")(function)
    (read,) = definition.activities["a"].arguments(definition.activities["a"].encode_input(value))
    return read


async def as_result(declared: Any, value: Any) -> Any:
    async def function(ctx: Any) -> Any: ...

    function.__annotations__["return"] = declared
    app = affinity.App()
    app.orchestration(name="o")(function)
    definition = app.orchestrations["o@1.0.0"]
    return definition.result_codec.decode(definition.encode_result(value))


async def as_event(declared: Any, value: Any) -> Any:
    event = affinity.Event("e", declared)
    return event.data_codec.decode(event(value).text)


async def as_reply(declared: Any, value: Any) -> Any:
    codec = affinity.Event("e", str, reply=declared).reply_codec
    return codec.decode(codec.encode(value))


def is_model(declared: Any) -> bool:
    return isinstance(declared, type) and issubclass(declared, BaseModel)


async def as_state(declared: Any, value: Any) -> Any:
    """In a field of a state that is in the store, as another process gets it."""
    holder: Any = create_model("Holder", value=(declared | None, None))
    store = MemorySessionStore()
    async with affinity.Sessions(holder, store=store).open("s") as state:
        state.value = declared(**value) if is_model(declared) and isinstance(value, dict) else value
    async with affinity.Sessions(holder, store=store).open("s") as state:
        return state.value


async def as_journal_event(declared: Any, value: Any) -> Any:
    kind = Literal["user.noted"]
    event: Any = create_model("Noted", __base__=JournalEvent, value=(declared, ...), kind=(kind, "user.noted"))
    made = event.model_construct(value=value, kind="user.noted")
    if is_model(declared) and isinstance(value, dict):
        made = event(value=value)
    types = EventTypes([event])
    return types.decode("user.noted", types.encode(made)).value  # type: ignore[attr-defined]


TYPED: Final = [as_input, as_result, as_event, as_reply, as_state, as_journal_event]


@pytest.mark.parametrize("place", TYPED, ids=lambda one: one.__name__)
@pytest.mark.parametrize("kind", KEPT, ids=lambda one: one[0])
async def test_what_is_kept_is_read_as_it_was_given(place: Any, kind: tuple[str, Any, Callable[[], Any]]) -> None:
    name, declared, make = kind
    read, given = await place(declared, make()), make()
    if name == "json_within_json":
        assert read.data == [1, 2]
        return
    assert read == given
    assert type(read) is type(given)


@pytest.mark.parametrize("place", TYPED, ids=lambda one: one.__name__)
@pytest.mark.parametrize("kind", REFUSED, ids=lambda one: one[0])
async def test_what_would_be_lost_is_refused_with_its_place(
    place: Any, kind: tuple[str, Any, Callable[[], Any], str]
) -> None:
    name, declared, make, reason = kind
    if name == "iterator_within" and place is as_state:
        reason = "list|Pydantic"
    if name == "required_and_left_out" and place is as_state:
        pytest.skip("a type that cannot be a state's")
    with pytest.raises(NotSerializable, match=reason):
        await place(declared, make())


@pytest.mark.parametrize("place", [as_input, as_result, as_event, as_reply], ids=lambda one: one.__name__)
@pytest.mark.parametrize("make", ONE_SHOT.values(), ids=ONE_SHOT)
async def test_an_iterator_keeps_all_its_items(place: Any, make: Callable[[], Iterator[int]]) -> None:
    assert await place(list[int], make()) == [0, 1, 2]
    assert await place(Any, (n for n in make())) == [0, 1, 2]


@pytest.mark.parametrize("kind", FORMS, ids=lambda one: one[0])
async def test_a_state_has_the_form_that_is_read_from_the_write_on(
    kind: tuple[str, Any, Callable[[], Any], Any],
) -> None:
    _, declared, make, form = kind
    fields: dict[str, Any] = {"value": (declared | None, None), "inner": (Tree, Tree()), "facts": (dict[str, Any], {})}
    holder: Any = create_model("Holder", **fields)
    store, sessions = MemorySessionStore(), affinity.Sessions(holder)
    opening = sessions.open("s", store=store)
    async with opening as state:
        facts, inner = state.facts, state.inner
        state.value = make()
        facts["a"] = [make()] if declared is Any else 1
        await opening.save()
        assert repr(state.value) == repr(form)
        assert repr(state.facts["a"]) == repr([form] if declared is Any else 1)
        assert (state.facts is facts, state.inner is inner) == (True, True)
        before = repr(state)
    async with sessions.open("s", store=store) as state:
        assert repr(state) == before


async def test_a_state_that_is_set_again_to_what_it_was_has_this_form_too() -> None:
    store = MemorySessionStore()
    facts = affinity.Sessions(dict[str, Any], kind="facts")
    for _ in range(3):
        opening = facts.open("s", store=store)
        async with opening as state:
            state["since"] = datetime(2026, 1, 2, tzinfo=UTC)
            await opening.save()
            assert state["since"] == "2026-01-02T00:00:00Z"
            state["since"] = datetime(2026, 1, 2, tzinfo=UTC)
            await opening.save()
            assert state["since"] == "2026-01-02T00:00:00Z"
        assert opening.version == 1


async def test_what_a_type_leaves_out_starts_from_its_default() -> None:
    """The type says so: fields with ``exclude=True``, and private attributes."""
    given = Scratch(kept=1, left_out=2)
    given._private = 4
    for place in TYPED:
        read = await place(Scratch, given)
        assert (read.kept, read.left_out, read._private) == (1, 7, 3)


# --- places without a type --------------------------------------------------------------------------------------------


async def as_tool_result(value: Any) -> Any:
    async def function() -> Any:
        return value

    made = tool(function)
    return await made.run(made.validate({}))


async def as_json(value: Any) -> Any:
    """Streamed parts, results of conversations, notes of revisits, extras, handles of resources."""
    return json_of(value)[1]


async def as_any(value: Any) -> Any:
    """Custom status, events and schedules by name, inputs of instances by name."""
    codec = Codec(Any, "value")
    return codec.decode(codec.encode(value))


UNTYPED: Final = [as_tool_result, as_json, as_any]


@pytest.mark.parametrize("place", UNTYPED, ids=lambda one: one.__name__)
async def test_values_without_a_type(place: Any) -> None:
    for _, declared, make, form in FORMS:
        if declared is Any:
            assert await place(make()) == form
    for name, declared, make, reason in REFUSED:
        if declared is Any:
            with pytest.raises((NotSerializable, ValueError), match=reason):
                await place(make())
        assert name
    with pytest.raises((NotSerializable, ValueError), match="JSON has one key"):
        await place({1: 1, "1": 2})


# --- through a database -----------------------------------------------------------------------------------------------

app = affinity.App("values")


@app.activity
async def same(ctx: affinity.ActivityContext, value: Any) -> Any:
    return value


@app.orchestration
async def through(ctx: affinity.OrchestrationContext, value: dict[str, Any]) -> Any:
    made = MAKERS[value["make"]]()
    if value["place"] == "status":
        ctx.set_custom_status(made)
        return None
    elif value["place"] == "continue_as_new":
        ctx.continue_as_new({**value, "place": "end", "made": made})
    elif value["place"] == "activity":
        return await ctx.schedule_activity(same, made)
    return value.get("made") if value["place"] == "end" else made


MAKERS: Final = {
    **{f"form {name}": make for name, declared, make, _ in FORMS if declared is Any},
    **{f"loss {name}": make for name, declared, make, _ in REFUSED if declared is Any},
}


async def test_orchestrations_refuse_and_keep_the_same() -> None:
    async with Env(app) as env:
        for name in MAKERS:
            for place in ("status", "continue_as_new", "activity", "result"):
                handle = await env.client.start(through, {"make": name, "place": place})
                if name.startswith("loss"):
                    with pytest.raises(AffinityError, match=r"NotSerializable|PayloadTooLarge"):
                        await handle.wait()
                else:
                    form = next(form for kind, _, _, form in FORMS if f"form {kind}" == name)
                    assert (await handle.wait()) == (None if place == "status" else form), (name, place)


# --- comparing --------------------------------------------------------------------------------------------------------


class Incomparable:
    """As an array: it compares item by item."""

    def __eq__(self, other: object) -> Any:
        raise ValueError("the truth value is ambiguous")

    __hash__ = None  # type: ignore[assignment]


def test_what_cannot_be_compared_is_not_lost() -> None:
    assert find_loss([Incomparable(), object()], [Incomparable(), object()]) is None
    given = {"a": [Incomparable()]}
    assert conform(given, {"a": [Incomparable()]}, thorough=True) == (given, False)
