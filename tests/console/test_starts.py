"""Forms that start an instance, and run one again."""

from __future__ import annotations

import re
from typing import Any

import httpx2 as httpx
import pytest

from affinity import Client
from affinity.console import READ, Access, hide_payloads
from affinity.console.pages.starts import fields_of, start_input
from affinity.errors import InvalidInput
from tests.console.conftest import ORIGIN, Open, fill, token
from tests.support.console_app import Order, buys, spoils

pytestmark = pytest.mark.anyio


def test_fields_are_those_of_a_flat_input() -> None:
    fields = fields_of(Order.model_json_schema())
    assert fields is not None
    assert [(field.key, field.is_required, field.default) for field in fields] == [
        ("field.string.item", True, ""),
        ("field.integer.count", False, "1"),
        ("field.boolean.gift", False, "false"),
    ]
    nested: dict[str, Any] = {"properties": {"order": {"$ref": "#/$defs/Order"}}}
    others: list[dict[str, Any] | None] = [None, {}, {"type": "string"}, {"type": "null"}, {"properties": {}}, nested]
    for schema in others:
        assert fields_of(schema) is None


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ({"input": '{"a": [1]}'}, {"a": [1]}),
        ({"input": " "}, None),
        ({}, None),
        (
            {"field.string.item": "7", "field.integer.count": "7", "field.boolean.gift": "true"},
            {"item": "7", "count": 7, "gift": True},
        ),
        ({"field.string.item": "", "field.number.price": "0.5"}, {"price": 0.5}),
        ({"field.string.a.b": "x"}, {"a.b": "x"}),
        *(
            ({key: text}, InvalidInput)
            for key, text in (
                ("input", "{"),
                ("field.integer.count", "1.5"),
                ("field.integer.count", "true"),
                ("field.boolean.gift", "1"),
                ("field.number.price", '"x"'),
                ("field.number.price", "x"),
            )
        ),
    ],
)
def test_the_input_of_a_form(form: dict[str, str], value: Any) -> None:
    if value is InvalidInput:
        with pytest.raises(InvalidInput):
            start_input(form)
    else:
        assert start_input(form) == value


async def do(http: httpx.AsyncClient, action: str, **form: str) -> httpx.Response:
    return await http.post(
        f"/do/{action}", data={"token": await token(http, "/start?name=buys"), **form}, headers=ORIGIN
    )


async def test_one_is_started_by_its_fields_and_run_again(client: Client, open_console: Open) -> None:
    async with open_console() as http:
        page = (await http.get("/start?name=buys")).text
        assert 'name="field.string.item" value="" required' in page
        assert "JSON Schema of its input" in page
        assert "No worker has code for it" in (await http.get("/start?name=nothing")).text
        wrong = await do(http, "start", name="buys", **{"field.integer.count": "2"})
        assert wrong.status_code == 400
        done = await do(
            http, "start", name="buys", id="one", **{"field.string.item": "tea", "field.integer.count": "2"}
        )
        assert (done.status_code, done.headers["location"]) == (303, "/instance?id=one")
        assert await client.handle("one", buys).wait(20) == "2 tea"
        assert "/rerun?id=one" in (await http.get("/instance?id=one")).text
        assert "&#34;count&#34;: 2" in (await http.get("/rerun?id=one")).text
        done = await do(http, "rerun", instance="one", input='{"item": "milk"}')
        again = re.sub(r".*id=", "", done.headers["location"])
        assert await client.handle(again, buys).wait(20) == "1 milk"
        assert (await do(http, "rerun", instance="one", id="same")).status_code == 303
        assert await client.handle("same", buys).wait(20) == "2 tea"
    async with open_console(redact=hide_payloads) as http:
        hidden = (await http.get("/rerun?id=one")).text
        assert "tea" not in hidden
        assert "empty: the same one" in hidden
    async with open_console(access=lambda request: Access(READ)) as http:
        assert "<textarea" not in (await http.get("/rerun?id=one")).text
        assert "/rerun?id=one" not in (await http.get("/instance?id=one")).text


async def test_all_that_fit_are_run_again(client: Client, open_console: Open) -> None:
    """After a count; each with its own input and its labels, and none of a conversation."""
    await fill(client, "plain")
    await client.start(spoils, "tagged", instance_id="tagged", labels={"team": "tea"})
    await client.wait_finished("tagged", 20)
    async with open_console() as http:
        page = (await http.get("/instances?status=failed&count=yes")).text
        assert "Run again 2</summary>" in page
        form = {"token": await token(http), "status": "failed", "count": "2", "confirm": "2"}
        assert (await http.post("/do/rerun-matching", data=form, headers=ORIGIN)).status_code == 303
    found = [one for one in await client.list_instances(name="spoils") if one.instance_id not in {"tagged", "spoilt"}]
    assert sorted(dict(one.labels).get("team", "") for one in found) == ["", "tea"]
    for one in found:
        await client.wait_finished(one.instance_id, 20)
    assert sorted([await client.input_of(one.instance_id) for one in found]) == ["plain", "tagged"]
