"""Registration, names and versions, and typed payloads."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import BaseModel, Field

from affinity import ActivityContext, App, OrchestrationContext, SessionCache
from affinity.errors import InvalidApp, NotSerializable, OrchestrationMisuse, PayloadTooLarge
from affinity.limits import MAX_PAYLOAD_BYTES
from affinity.orchestration.app import digest_of
from affinity.orchestration.codec import Codec
from affinity.orchestration.definitions import ActivityDefinition, OrchestrationDefinition, definition_of

if TYPE_CHECKING:
    from affinity.somewhere import OnlyForTypeCheckers  # type: ignore[import-not-found]


class Message(BaseModel):
    text: str
    n: int | None = None


class Coordinate(BaseModel):
    x: float | None


class Reply(BaseModel):
    text: str


def activity(function: Any) -> ActivityDefinition:
    App("test").activity(function)
    definition = definition_of(function)
    assert isinstance(definition, ActivityDefinition)
    return definition


def test_decorators_return_the_function() -> None:
    app = App("test")

    async def reply(ctx: ActivityContext, message: Message) -> Reply:
        return Reply(text=message.text)

    def plain(ctx: ActivityContext) -> None: ...

    async def chat(ctx: OrchestrationContext) -> None: ...

    for registered, function in ((app.activity(reply), reply), (app.activity(name="other")(plain), plain)):
        assert inspect.signature(registered) == inspect.signature(function)
        assert inspect.iscoroutinefunction(registered) is inspect.iscoroutinefunction(function)
        assert definition_of(registered) is definition_of(function)
    assert app.orchestration(version="2.0.0")(chat) is chat
    assert set(app.activities) == {"reply", "other"}
    assert set(app.orchestrations) == {"chat@2.0.0"}
    assert app.activities["reply"].is_async
    assert not app.activities["other"].is_async
    assert app.activities["reply"].function is reply
    assert app.orchestrations["chat@2.0.0"].key == "chat@2.0.0"
    app.check()


@pytest.mark.parametrize(
    ("versions", "latest"),
    [
        (["1.9.0", "1.10.0", "1.2.0"], "1.10.0"),
        (["2.0.0-rc1", "2.0.0"], "2.0.0"),
        (["2.0.0-rc2", "2.0.0-rc10"], "2.0.0-rc10"),
        (["v2", "v10"], "v10"),
        (["2024-06-01", "2024-11-30"], "2024-11-30"),
        (["1.0", "1.0.1"], "1.0.1"),
    ],
)
def test_latest_version(versions: list[str], latest: str) -> None:
    for order in (versions, versions[::-1]):
        app = App("test")
        for version in order:

            async def chat(ctx: OrchestrationContext) -> None: ...

            app.orchestration(version=version)(chat)
        found = app.find_orchestration("chat")
        assert found is not None
        assert found.version == latest
        for version in versions:
            assert app.find_orchestration("chat", version) is app.orchestrations[f"chat@{version}"]
    assert app.find_orchestration("chat", "9") is None
    assert app.find_orchestration("unknown") is None


def test_wrong_registrations() -> None:
    app = App("test")

    @app.activity
    def taken(ctx: ActivityContext) -> None: ...

    @app.orchestration
    async def also_taken(ctx: OrchestrationContext) -> None: ...

    def three(ctx: ActivityContext, a: int, b: int) -> None: ...
    def none() -> None: ...
    def stars(ctx: ActivityContext, *rest: int) -> None: ...
    def keyword(ctx: ActivityContext, *, a: int) -> None: ...
    def sync(ctx: OrchestrationContext) -> None: ...
    async def stream(ctx: ActivityContext) -> AsyncIterator[int]:
        yield 1

    for function in (three, none, stars, keyword):
        with pytest.raises(InvalidApp, match="at most one input"):
            app.activity(function)  # type: ignore[type-var]
    with pytest.raises(InvalidApp, match="must be an async def"):
        app.orchestration(sync)  # type: ignore[type-var]
    with pytest.raises(InvalidApp, match="generator"):
        app.activity(stream)
    with pytest.raises(InvalidApp, match="two of activity 'taken'"):
        app.activity(name="taken")(lambda ctx: None)
    with pytest.raises(InvalidApp, match=r"two of orchestration 'also_taken@1.0.0'"):
        app.orchestration(name="also_taken")(functools.partial(also_taken))
    with pytest.raises(InvalidApp, match="registered already"):
        app.activity(name="again")(taken)
    for name in ("", "a\nb", "a@b", "x" * 300):
        with pytest.raises(InvalidApp):
            app.activity(name=name)(lambda ctx: None)
    with pytest.raises(InvalidApp):
        app.activity(3)  # type: ignore[call-overload]


def test_include() -> None:
    one, two, three = App("one"), App("two"), App("three")

    @one.activity
    def work(ctx: ActivityContext) -> None: ...

    @one.orchestration
    async def chat(ctx: OrchestrationContext) -> None: ...

    @three.activity(name="work")
    def other(ctx: ActivityContext) -> None: ...

    listener = SessionCache[int]()
    one.include(listener)
    two.include(one)
    two.include(one)
    assert two.activities == one.activities
    assert two.find_orchestration("chat") is one.find_orchestration("chat")
    assert two.session_listeners == (listener,)
    with pytest.raises(InvalidApp):
        two.include(three)
    neither: Any = object()
    with pytest.raises(InvalidApp, match="an App, Sessions or SessionCache"):
        two.include(neither)


def test_bound_methods_and_partials_are_activities() -> None:
    class Model:
        async def generate(self, ctx: ActivityContext, prompt: str) -> int:
            return len(prompt)

    definition = activity(Model().generate)
    assert definition.is_async
    assert definition.encode_result(3) == "3"

    app = App("test")

    class Called:
        def __call__(self, ctx: ActivityContext, prompt: str) -> int:
            return 1

    app.activity(name="called")(Called())
    assert app.activities["called"].encode_result(1) == "1"
    with pytest.raises(NotSerializable):
        app.activities["called"].encode_result("x")


def test_inputs_and_results_follow_the_annotations() -> None:
    def reply(ctx: ActivityContext, message: Message) -> list[Reply]:
        return []

    definition = activity(reply)
    assert definition.encode_input(Message(text="hi")) == '{"text":"hi","n":null}'
    assert definition.encode_input({"text": "hi"}) == '{"text":"hi","n":null}'
    assert definition.arguments('{"text":"hi"}') == (Message(text="hi"),)
    assert definition.encode_result([Reply(text="a")]) == '[{"text":"a"}]'
    assert definition.encode_result((Reply(text="a"),)) == '[{"text":"a"}]'
    assert definition.result_codec.decode('[{"text":"a"}]') == [Reply(text="a")]
    with pytest.raises(NotSerializable, match=r"input of activity 'reply' must be Message: text: Field required"):
        definition.arguments("{}")
    with pytest.raises(NotSerializable, match=r"result of activity 'reply' must be list\[.*Reply\]: got str"):
        definition.encode_result("hi")
    with pytest.raises(NotSerializable, match="activity 'reply'"):
        definition.encode_result(None)
    with pytest.raises(NotSerializable, match="0: Input should be"):
        definition.encode_result([None])


def test_unannotated_takes_whatever_json_can_carry() -> None:
    def loose(ctx, value):  # type: ignore[no-untyped-def]
        ...

    definition = activity(loose)
    assert definition.encode_input({"text": "hi", "n": 1}) == '{"text":"hi","n":1}'
    with pytest.raises(NotSerializable, match="would be read as a dict, not a Message: annotate it"):
        definition.encode_input(Message(text="hi", n=1))
    with pytest.raises(NotSerializable, match="result of activity 'loose' has no annotation"):
        definition.encode_result(Message(text="hi", n=1))
    assert definition.arguments('{"a":[1]}') == ({"a": [1]},)
    for value in (object(), {"x": object()}, b"\xff", "\ud800"):
        with pytest.raises(NotSerializable, match="result of activity 'loose'"):
            definition.encode_result(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, {"a": [-math.inf]}, Coordinate(x=math.nan)])
def test_nan_and_infinity_are_refused(value: Any) -> None:
    with pytest.raises(NotSerializable, match=r"NaN|number"):
        Codec(Any, "value").encode(value)


def test_null_inside_is_no_nan() -> None:
    assert (
        Codec(Any, "value").encode({"a": None, "b": ["null", 1.5, {1: None}]})
        == '{"a":null,"b":["null",1.5,{"1":null}]}'
    )
    with pytest.raises(NotSerializable):
        Codec(float, "value").encode(math.nan)


def test_big_numbers_and_text_round_trip() -> None:
    codec = Codec(Any, "value")
    values: list[Any] = [10**40, 1e300, 0.1, "é\x00\n\u2028😀", True, None, [], {}]
    for value in values:
        assert codec.decode(codec.encode(value)) == value


def test_limits_and_constraints() -> None:
    with pytest.raises(PayloadTooLarge):
        Codec(str, "value").encode("x" * MAX_PAYLOAD_BYTES)
    positive = Codec(Annotated[int, Field(gt=0)], "value")
    with pytest.raises(NotSerializable, match="greater than 0"):
        positive.decode("-1")
    many = Codec(list[int], "value")
    with pytest.raises(NotSerializable, match="and 7 more"):
        many.decode('["a","a","a","a","a","a","a","a","a","a"]')
    with pytest.raises(NotSerializable):
        many.decode("{")


def test_user_code_in_a_schema_cannot_break_out() -> None:
    class Nasty(BaseModel):
        text: str

        def model_post_init(self, context: Any) -> None:
            raise RuntimeError("boom")

    with pytest.raises(NotSerializable, match="RuntimeError: boom"):
        Codec(Nasty, "value").decode('{"text":"x"}')


def test_missing_inputs_and_defaults() -> None:
    def required(ctx: ActivityContext, value: int) -> None: ...
    def defaulted(ctx: ActivityContext, value: int = 7) -> None: ...
    def nullable(ctx: ActivityContext, value: int | None = 7) -> None: ...
    def no_input(ctx: ActivityContext) -> None: ...

    assert activity(defaulted).encode_input() == "7"
    assert activity(defaulted).arguments("null") == ()
    assert activity(nullable).encode_input() == "7"
    assert activity(nullable).arguments("null") == (None,)
    assert activity(no_input).encode_input() == "null"
    assert activity(no_input).encode_input(None) == "null"
    assert activity(no_input).arguments("5") == ()
    with pytest.raises(OrchestrationMisuse, match="takes an input"):
        activity(required).encode_input()
    with pytest.raises(OrchestrationMisuse, match="takes no input"):
        activity(no_input).encode_input(1)
    with pytest.raises(NotSerializable):
        activity(required).arguments("null")


def test_annotations_are_resolved_late_and_only_where_needed() -> None:
    def typed(ctx: OnlyForTypeCheckers, value: Later) -> Later:
        return value

    def broken(ctx: ActivityContext) -> OnlyForTypeCheckers: ...
    def schemaless(ctx: ActivityContext, value: Schemaless) -> None: ...

    assert activity(typed).arguments('{"n":1}') == (Later(n=1),)
    for function in (broken, schemaless):
        app = App("test")
        app.activity(function)
        with pytest.raises(InvalidApp, match=f"activity '{function.__name__}'"):
            app.check()


def test_wrapped_functions_keep_their_types() -> None:
    def traced(function: Any) -> Any:
        @functools.wraps(function)
        async def wrapper(*args: Any) -> Any:
            return await function(*args)

        return wrapper

    @traced
    async def reply(ctx: ActivityContext, message: Message) -> Reply:
        return Reply(text=message.text)

    definition = activity(reply)
    assert definition.is_async
    assert definition.arguments('{"text":"x"}') == (Message(text="x"),)


def test_a_version_is_part_of_the_title() -> None:
    async def chat(ctx: OrchestrationContext, n: int) -> int:
        return n

    App("test").orchestration(version="3")(chat)
    definition = definition_of(chat)
    assert isinstance(definition, OrchestrationDefinition)
    assert repr(definition) == "<orchestration 'chat@3'>"
    with pytest.raises(NotSerializable, match="orchestration 'chat@3' must be int"):
        definition.encode_result("x")


class Later(BaseModel):
    n: int


class Schemaless:
    pass


def test_a_digest_tells_functions_apart_and_is_the_same_in_each_process() -> None:
    """It is of module, qualified name and signature: not of the body, of default values, or of addresses."""

    def make(default: object, annotation: object) -> Any:
        async def one(ctx: ActivityContext, value: Any = default) -> None: ...

        one.__annotations__["value"] = annotation
        return one

    async def two(ctx: ActivityContext, value: Any = 1) -> None: ...

    assert digest_of(make(object(), int)) == digest_of(make(object(), int))
    assert digest_of(make(1, int)) != digest_of(make(1, str))
    assert digest_of(make(1, Any)) != digest_of(two)
    places = [digest_of(each).partition(".")[0] for each in (make(1, int), make(1, str), two)]
    assert places[0] == places[1] != places[2]  # which a change of the signature does not touch
    app = App("digests")
    app.activity(name="a")(two)
    made = make(1, int)
    made.__annotations__["ctx"] = OrchestrationContext
    app.orchestration(name="o", version="2")(made)
    registered = app.registered()
    assert {kind: list(names) for kind, names in registered.items()} == {
        "orchestrations": ["o@2"],
        "activities": ["a"],
    }
    assert re.fullmatch(r"[0-9a-f]{12}\.[0-9a-f]{8}", registered["activities"]["a"])
