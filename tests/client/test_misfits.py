"""Schemas of what code takes: a misfit is found with its place, and nothing that pydantic reads is one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    WrapValidator,
    model_validator,
)
from typing_extensions import TypedDict

import affinity
from affinity.client.misfits import find_misfit
from affinity.limits import MAX_SCHEMA_BYTES, MAX_SCHEMAS_BYTES
from affinity.orchestration.schemas import awaited_events, schema_of


class Item(BaseModel):
    id: int
    tag: str | None = None


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")
    items: list[Item]
    size: Literal["s", "m"] = "s"


class Aliased(BaseModel):
    model_config = ConfigDict(extra="forbid")
    item_id: int = Field(alias="itemId")
    note: str = Field(validation_alias=AliasChoices("note", "remark"))


class Normalised(BaseModel):
    words: list[str]

    @model_validator(mode="before")
    @classmethod
    def split(cls, value: Any) -> Any:
        return {"words": value.split()} if isinstance(value, str) else value


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Node(BaseModel):
    children: list[Node] = []


class Row(TypedDict, total=False):
    n: int


@dataclass
class Point:
    x: float
    y: float = 0.0


class Colour(Enum):
    RED = "red"


Words = Annotated[list[str], BeforeValidator(lambda value: value.split() if isinstance(value, str) else value)]
Parsed = Annotated[int, PlainValidator(len)]
Wrapped = Annotated[int, WrapValidator(lambda value, read: read(len(value) if isinstance(value, list) else value))]

TAKEN: list[tuple[Any, Any]] = [
    (int, 5), (int, "5"), (int, 5.0), (int, True), (float, "1e3"), (float, 1), (bool, "yes"), (bool, 0), (str, ""),
    (Decimal, "1.5"), (Decimal, 2), (datetime, "2026-01-01T00:00:00Z"), (datetime, 1_700_000_000), (date, "2026-01-01"),
    (timedelta, 90), (timedelta, "PT90S"), (UUID, "12345678123456781234567812345678"), (bytes, "x"), (Colour, "red"),
    (int | None, None), (list[int], ["1"]), (tuple[int, str], [1, "a"]), (set[int], [1]), (dict[int, str], {"1": "a"}),
    (Order, {"items": [{"id": "7"}]}), (Aliased, {"item_id": 1, "remark": "x"}), (Aliased, {"itemId": 1, "note": ""}),
    (Normalised, "a b"), (list[Normalised], ["a b", {"words": []}]), (Words, "a b"), (Parsed, "abc"), (Wrapped, [1]),
    (Annotated[Cat | Dog, Field(discriminator="kind")], {"kind": "dog", "name": "x"}),
    (Cat | Dog, {"kind": "cat", "lives": 9}),
    (Node, {"children": [{"children": []}]}), (Row, {}), (Row, {"n": 1}), (Point, {"x": 1}), (Any, {"a": [1]}),
    (Annotated[str, Field(pattern=r"^\p{L}+$")], "tea"),
]  # fmt: skip

MISFITS: list[tuple[Any, Any, str]] = [
    (int, "x", "'x' is not of type 'integer'"),
    (int, 1.5, "1.5 is not of type 'integer'"),
    (bool, "maybe", "boolean"),
    (str, 5, "string"),
    (list[int], {"a": 1}, "array"),
    (int | None, "x", "'x'"),
    (Order, {}, "'items' is a required property"),
    (Order, {"items": [{"id": 1}, {"id": "x"}]}, "items.1.id: 'x' is not of type 'integer'"),
    (Order, {"items": [], "siez": "m"}, "siez"),
    (Order, {"items": [], "size": "xl"}, "size: 'xl'"),
    (Aliased, {"itemId": "x", "note": ""}, "itemId"),
    (Node, {"children": [{"children": 3}]}, "children.0.children"),
    (Row, {"n": "x"}, "n: 'x'"),
    (Point, {"y": 1}, "'x' is a required property"),
    (Annotated[int, Field(ge=0)], -1, "-1"),
    (Annotated[Cat | Dog, Field(discriminator="kind")], {"kind": "cow"}, "cow"),
]


@pytest.mark.parametrize(("declared", "value"), TAKEN)
def test_nothing_that_a_worker_reads_is_a_misfit(declared: Any, value: Any) -> None:
    schema = schema_of(declared)
    if not schema or "pattern" not in schema:  # a pattern of another dialect, which is no misfit either
        TypeAdapter(declared).validate_json(json.dumps(value), by_alias=True, by_name=True)
    assert schema is not None
    assert find_misfit(schema, value) is None


@pytest.mark.parametrize(("declared", "value", "problem"), MISFITS)
def test_a_misfit_is_found_with_its_place(declared: Any, value: Any, problem: str) -> None:
    schema = schema_of(declared)
    assert schema is not None
    assert problem in (find_misfit(schema, value) or "")
    with pytest.raises(ValueError, match="validation error"):
        TypeAdapter(declared).validate_json(json.dumps(value), by_alias=True, by_name=True)


def test_a_schema_reads_no_address() -> None:
    assert find_misfit({"$ref": "http://127.0.0.1:9/schema.json"}, 5) is None


def test_schemas_that_are_too_large_are_left_out() -> None:
    many = Literal[tuple(f"{n:0>99}" for n in range(MAX_SCHEMA_BYTES // 100))]  # type: ignore[valid-type]
    assert schema_of(many) is None
    app = affinity.App("large")
    few: Any = Literal[tuple(f"{n:0>99}" for n in range(MAX_SCHEMA_BYTES // 110))]

    def add(name: str) -> None:
        async def one(ctx: affinity.OrchestrationContext, value: Any) -> None: ...

        one.__annotations__["value"] = few
        app.orchestration(name=name)(one)

    for n in range(30):
        add(f"o{n}")
    found = app.interfaces()["orchestrations"]
    assert 10 < len(found) < 30
    assert len(json.dumps(found)) < MAX_SCHEMAS_BYTES * 1.2
    assert len(app.registered()["orchestrations"]) == 30


Said = affinity.Event("said", Item)


class Names:
    event = Said
    word = "word"


async def typed(ctx: affinity.OrchestrationContext) -> None:
    await ctx.schedule_wait("a", Item)
    await ctx.schedule_wait(name="b", type=int)
    await ctx.select(ctx.schedule_wait(Names.event), ctx.schedule_wait(Names.word, bool))
    await ctx.schedule_wait("a", Item)


async def untyped(ctx: affinity.OrchestrationContext) -> None:
    await ctx.schedule_wait("a", Item)
    await ctx.schedule_wait("a")
    await ctx.schedule_wait("b", Item)
    await ctx.schedule_wait("b", int)
    await ctx.schedule_wait("c", list[int])


async def computed(ctx: affinity.OrchestrationContext) -> None:
    await ctx.schedule_wait("a", Item)
    for name in "xy":
        await ctx.schedule_wait(name, int)


async def helped(ctx: affinity.OrchestrationContext) -> None:
    await ctx.schedule_wait("a", Item)
    await computed(ctx)


async def taken_away(ctx: affinity.OrchestrationContext) -> None:
    wait = ctx.schedule_wait
    await wait("a", Item)


@pytest.mark.parametrize(
    ("function", "known"),
    [
        (typed, {"a": Item, "b": int, "said": Item, "word": bool}),
        (untyped, {"a": Any, "b": Any, "c": Any}),
        (computed, None),
        (helped, None),
        (taken_away, None),
    ],
)
def test_events_are_known_if_the_source_says_all(function: Callable[..., Any], known: dict[str, Any] | None) -> None:
    assert awaited_events(function) == known
