"""The stored part of a state: types, projection, metadata, size, and explicit arguments."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import date, datetime
from math import inf, nan
from typing import Annotated, Any, Literal, Self, cast

import pytest
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SerializeAsAny, computed_field, model_validator
from typing_extensions import TypedDict

from affinity import Sessions
from affinity.errors import InvalidId, InvalidOptions, NotSerializable, PayloadTooLarge, SessionLoadFailed
from affinity.limits import COMPRESS_STATE_ABOVE, MAX_LABELS, MAX_PARTICIPANTS
from affinity.session import JsonCodec, SessionMetadata, SessionState
from tests.session.activities import Chat, CountingStore, Host

pytestmark = pytest.mark.anyio


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


async def saved(store: CountingStore) -> Any:
    record = await store.load("s")
    assert record is not None
    return json.loads(record.state)


# --- types ------------------------------------------------------------------------------------------------------------


@dataclass
class Notes:
    lines: list[str] = field(default_factory=list)
    on: date = date(2020, 1, 1)
    cache: Annotated[int, Field(exclude=True)] = 7


class Settings(TypedDict, total=False):
    size: int


@dataclass(frozen=True)
class Fixed:
    number: int = 0
    pair: tuple[int, int] = (0, 0)


class Odd(BaseModel):
    """Whatever may go wrong on the way to JSON and back."""

    model_config = ConfigDict(extra="forbid", strict=True)
    when: date = date(2020, 1, 1)
    pair: tuple[int, int] = (1, 2)
    other: int = Field(default=1, alias="Other", ge=0)
    _seen: int = PrivateAttr(default=0)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return self.other * 2


async def test_dataclasses_typed_dicts_and_containers(store: CountingStore) -> None:
    notes = Sessions(Notes, store=store)
    async with notes.open("s") as state:
        state.lines.append("x")
        state.cache = 9
    assert await saved(store) == {"lines": ["x"], "on": "2020-01-01"}
    async with notes.open("s") as state:
        assert state == Notes(["x"])
    async with Sessions(Settings, store=store).open("settings") as settings:
        settings["size"] = 3
    async with Sessions(Settings, store=store).open("settings") as settings:
        assert settings == {"size": 3}
    async with Sessions(dict[str, set[int]], store=store).open("sets") as sets:
        sets["a"] = {1, 2}
    async with Sessions(dict[str, set[int]], store=store).open("sets") as sets:
        assert sets == {"a": {1, 2}}


async def test_what_models_may_have_survives(store: CountingStore) -> None:
    odd = Sessions(Odd, store=store)
    async with odd.open("s") as state:
        state.other = 4
    assert await saved(store) == {"when": "2020-01-01", "pair": [1, 2], "other": 4}
    async with odd.open("s") as state:
        assert (state.other, state.double, state.pair) == (4, 8, (1, 2))


async def test_what_could_not_be_read_back_is_refused_in_time(store: CountingStore) -> None:
    with pytest.raises(NotSerializable, match="could not be read back: other: Input should be greater"):
        async with Sessions(Odd, store=store).open("s") as state:
            state.other = -1
    assert store.saves == 0


@dataclass
class Measured:
    value: float | None = None
    other: float = 0.0
    anything: Any = None


class Exact(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="constants")
    value: float | None = None
    other: str | None = None


@pytest.mark.parametrize(
    ("name", "value"), [("value", inf), ("value", nan), ("other", -inf), ("anything", {"a": [1.0, nan]})]
)
async def test_a_number_that_json_has_not_is_refused(store: CountingStore, name: str, value: Any) -> None:
    measured = Sessions(Measured, store=store)
    async with measured.open("s") as state:
        state.value = 1.0
    with pytest.raises(NotSerializable, match="session 's'"):
        async with measured.open("s") as state:
            setattr(state, name, value)
    async with measured.open("s") as state:
        assert state == Measured(value=1.0)


class Named(BaseModel):
    type: int | None = None
    default: float | None = None
    fields: list[dict[str, float | None]] = []


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class Whole(BaseModel):
    count: int | None = None
    text: str | None = None
    texts: list[str | None] = []
    tags: set[Literal["a"] | None] = set()
    by_name: dict[str, bool | None] = {}
    parts: tuple[bytes | None, ...] = ()
    at: datetime | None = None


class Longer(Whole):
    more: float | None = None


class Duck(BaseModel):
    one: SerializeAsAny[Whole]


@pytest.mark.parametrize(
    ("declared", "state"),
    [
        (list, [None, inf]),
        (dict[str, Any], {"a": {"b": nan}}),
        (Named, Named(default=inf)),
        (Named, Named(fields=[{"a": nan}])),
        (Open, Open(more=inf)),  # type: ignore[call-arg]
        (Duck, Duck(one=Longer(more=-inf))),
        *[(Whole, Whole().model_copy(update={name: inf})) for name in ("count", "text", "at")],
        *[(Whole, Whole().model_copy(update={name: [inf]})) for name in ("texts", "parts", "tags")],
        (Whole, Whole().model_copy(update={"by_name": {"a": inf}})),
    ],
)
def test_no_type_writes_null_for_a_number(declared: Any, state: Any) -> None:
    with pytest.raises(ValueError, match=r"NaN|Pydantic|Longer is read back as Whole"):
        JsonCodec(declared).dump(state)


async def test_a_number_becomes_infinite_where_nothing_was(store: CountingStore) -> None:
    """The bytes would equal the record's: it would pass for a state that has not changed."""
    measured = Sessions(Measured, store=store)
    async with measured.open("s"):
        pass
    with pytest.raises(NotSerializable, match="NaN"):
        async with measured.open("s") as state:
            state.value = inf


async def test_a_model_that_says_how_to_write_infinity_keeps_it(store: CountingStore) -> None:
    for _ in range(2):
        async with Sessions(Exact, store=store).open("s") as state:
            assert state.value in {None, inf}
            state.value = inf
    migrated = Sessions(Exact, store=store, schema_version=2)
    migrated.register_migration(1, 2, dict)
    async with migrated.open("s") as state:
        assert state == Exact(value=inf)


async def test_a_codec_of_ones_own(store: CountingStore) -> None:
    class Words:
        def dump(self, state: list[str]) -> bytes:
            return " ".join(state).encode()

        def parse(self, raw: bytes) -> Any:
            return raw.decode()

        def build(self, plain: Any) -> list[str]:
            return list(plain.split())

    words = Sessions[list[str]](list, kind="words", codec=Words())
    async with words.open("s", store=store) as state:
        state.append("a")
        state.append("b")
    async with words.open("s", store=store) as state:
        assert state == ["a", "b"]
    with pytest.raises(NotSerializable, match="TypeError"):
        async with words.open("s", store=store) as state:
            state.append(3)  # type: ignore[arg-type]


def test_a_type_without_a_json_form_needs_a_codec() -> None:
    class Socket:
        pass

    with pytest.raises(InvalidOptions, match="give a codec"):
        Sessions(Socket)
    assert Sessions(Socket, codec=JsonCodec(dict))
    with pytest.raises(InvalidOptions, match="give initial="):
        Sessions(cast(type[int | str], int | str))
    assert Sessions(cast(type[int | str], int | str), initial=lambda _: 0)


def test_the_kind_is_the_name_of_the_type() -> None:
    assert Sessions(Notes)._schema.kind == "Notes"
    assert Sessions(list[int])._schema.kind == "list"


# --- initial ----------------------------------------------------------------------------------------------------------


class Titled(BaseModel):
    title: str
    lines: list[str] = []


async def test_the_initial_state_may_depend_on_the_id(store: CountingStore) -> None:
    titled = Sessions(Titled, initial=lambda session_id: Titled(title=session_id), store=store)
    async with titled.open("s") as state:
        assert state.title == "s"


async def test_a_state_that_cannot_be_made_of_defaults_needs_initial_or_overrides(store: CountingStore) -> None:
    titled = Sessions(Titled, store=store)
    with pytest.raises(InvalidOptions, match="give initial="):
        async with titled.open("s"):
            pass
    async with titled.open("s", overrides={"title": "t"}) as state:
        assert state == Titled(title="t")


# --- projection -------------------------------------------------------------------------------------------------------


class Wide:
    """No JSON form at all."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.index = {word: number for number, word in enumerate(words)}


class Narrow(BaseModel):
    text: str


async def test_a_narrower_record_is_kept(host: Host) -> None:
    wide = Sessions(
        Wide,
        initial=lambda _: Wide(["a"]),
        record=Narrow,
        to_record=lambda state: Narrow(text=" ".join(state.words)),
        from_record=lambda record: Wide(record.text.split()),
    )
    ctx = host.activity()
    async with wide.open(ctx) as state:
        state.words.append("b")
    await host.finish(ctx)
    record = await host.stored()
    assert (json.loads(record.state), record.metadata.kind) == ({"text": "a b"}, "Wide")
    assert (await host.read(wide, epoch=2)).index == {"a": 0, "b": 1}
    assert (await host.stored()).version == 1


async def test_a_projection_that_fails_is_a_failed_load_or_an_unsaved_state(store: CountingStore) -> None:
    def refuse(_: Any) -> Any:
        raise LookupError("no such word")

    async with Sessions(Narrow, initial=lambda _: Narrow(text=""), kind="k", store=store).open("s"):
        pass
    bad = Sessions(Wide, kind="k", store=store, record=Narrow, to_record=refuse, from_record=refuse, initial=refuse)
    with pytest.raises(SessionLoadFailed, match="no such word"):
        async with bad.open("s"):
            pass


class Move(BaseModel):
    at: int
    seconds: float = 0.0  # not kept


class Game(BaseModel):
    """A state that is more than its record, at two levels."""

    player: str = ""
    moves: list[Move] = []
    score: int = 0
    board: dict[str, int] = {}  # not kept


class SavedMove(BaseModel):
    at: int


class SavedGame(BaseModel):
    moves: list[SavedMove]
    score: int = 0
    player: str


@dataclass
class Journey:
    """The same with dataclasses."""

    stops: list[str]
    speed: int = 0


@dataclass
class SavedJourney:
    stops: list[str] = field(default_factory=list)


async def test_a_narrower_record_alone_is_mapped_by_the_names_of_fields(store: CountingStore) -> None:
    games = Sessions(Game, kind="game", store=store, record=SavedGame)
    async with games.open("s") as game:
        game.player, game.board, game.moves = "ada", {"a1": 1}, [Move(at=3, seconds=2.5)]
    assert await saved(store) == {"moves": [{"at": 3}], "score": 0, "player": "ada"}
    async with games.open("s") as game:
        assert game == Game(player="ada", moves=[Move(at=3)])
        game.score += 1
    assert (await saved(store))["score"] == 1
    journeys = Sessions(Journey, kind="journey", store=store, record=SavedJourney, initial=lambda _: Journey(["a"], 5))
    async with journeys.open("j") as journey:
        journey.stops.append("b")
    async with journeys.open("j") as journey:
        assert journey == Journey(["a", "b"])


async def test_one_direction_may_have_a_function(store: CountingStore) -> None:
    games = Sessions(
        Game, kind="g", store=store, record=SavedGame, from_record=lambda saved: Game(player=saved.player.upper())
    )
    async with games.open("s") as game:
        game.player = "ada"
    async with games.open("s") as game:
        assert game.player == "ADA"


class Lacking(BaseModel):
    player: str
    rank: int


class Aliased(BaseModel):
    """Its first field is written under the name of its second."""

    player: str = Field("", serialization_alias="score")
    score: int = 0


class Unkept(BaseModel):
    score: int = 0
    player: str = Field("", exclude=True)


class Demanding(BaseModel):
    player: str
    score: int = 0


class Wider(BaseModel):
    player: str
    notes: list[str] = []


class Other(BaseModel):
    score: str = ""


class WiderMove(BaseModel):
    at: int
    note: str = ""


class OtherMoves(BaseModel):
    moves: list[WiderMove] = []


@pytest.mark.parametrize(
    ("state", "record", "message"),
    [
        (Game, Lacking, "'Lacking' cannot be made of 'Game' .*required rank; give defaults, or to_record="),
        (Lacking, Game, "'Lacking' cannot be made of 'Game' .*required rank; give defaults, or from_record="),
        (Demanding, Unkept, "'Demanding' cannot be made of 'Unkept' .*required player"),
        (Game, Odd, "no field in common"),
        (Game, Wider, "'Wider' has fields that 'Game' lacks: notes; take them out, or give to_record="),
        (Game, Other, r"one name and two types: score \(int, str\); make them the same, or give to_record="),
        (Game, OtherMoves, r"two types: moves \(list\[.*Move\], list\[.*WiderMove\]\)"),
        (Game, Settings, "neither a pydantic model nor a dataclass"),
        (Wide, Narrow, "neither a pydantic model nor a dataclass"),
    ],
)
def test_a_record_that_no_names_lead_to_is_refused_at_the_definition(state: Any, record: Any, message: str) -> None:
    with pytest.raises(InvalidOptions, match=message):
        Sessions(state, record=record, initial=lambda _: None)


@pytest.mark.parametrize("described", [SessionMetadata(kind="other"), SessionMetadata(parent="p")])
async def test_metadata_names_no_kind_and_no_parent(store: CountingStore, described: SessionMetadata) -> None:
    chats = Sessions(Chat, kind="chat", metadata=lambda _: described, store=store)
    with pytest.raises(InvalidOptions, match="a session has the kind of its Sessions, and the parent"):
        async with chats.open("s"):
            pass


class Bounded(BaseModel):
    n: int = Field(0, le=10)
    half: int = 0


class Unbounded(BaseModel):
    n: int = 0


def refuse_large(record: Unbounded) -> Bounded:
    if record.n > 10:
        raise LookupError("no such number")
    return Bounded(n=record.n)


def refuse_to_write(state: Bounded) -> Unbounded:
    if state.n > 10:
        raise LookupError("no such number")
    return Unbounded(n=state.n)


class TextCodec:
    """Without ``read``: it is read back in two steps."""

    def dump(self, state: Bounded) -> bytes:
        return str(state.n).encode()

    def parse(self, raw: bytes) -> int:
        return int(raw)

    def build(self, plain: int) -> Bounded:
        return Bounded(n=plain)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"codec": TextCodec()},
        {"record": Unbounded},
        {"record": Unbounded, "from_record": refuse_large},
        {"record": Unbounded, "to_record": refuse_to_write},
    ],
)
async def test_what_cannot_be_loaded_is_not_stored(store: CountingStore, options: dict[str, Any]) -> None:
    """Whatever stands between the state and its bytes: the store keeps the state before."""
    states = Sessions(Bounded, kind="k", store=store, **options)
    async with states.open("s") as state:
        state.n = 3
    with pytest.raises(NotSerializable, match="the state of session 's'"):
        async with states.open("s") as state:
            state.n = 11
    async with states.open("s") as state:
        assert state.n == 3


async def test_fields_are_mapped_by_their_names_whatever_they_are_written_as(store: CountingStore) -> None:
    ada = Demanding(player="ada", score=2)
    games = Sessions(Demanding, kind="g", store=store, record=Aliased, initial=lambda _: ada)
    async with games.open("s"):
        pass
    async with games.open("s", auto_save=False) as game:
        assert game == Demanding(player="ada", score=2)


async def test_fresh_scratch_is_all_that_a_record_does_not_have(host: Host) -> None:
    disposed: list[dict[str, int]] = []
    games = Sessions(
        Game, kind="game", record=SavedGame, fresh_scratch=True, dispose=lambda _, game: disposed.append(game.board)
    )
    for number in range(2):
        ctx = host.activity()
        async with games.open(ctx) as game:
            assert (game.board, game.score) == ({}, number)
            game.board["a1"], game.score = number, number + 1
        await host.finish(ctx)
    assert disposed == [{"a1": 0}]
    await games.aclose()
    assert disposed == [{"a1": 0}, {"a1": 1}]


# --- metadata ---------------------------------------------------------------------------------------------------------


def about(chat: Chat) -> SessionMetadata:
    return SessionMetadata(
        kind="chat",
        name=chat.lines[0] if chat.lines else None,
        message_count=len(chat.lines),
        participants=["user", "model"],
        labels={"mood": "good"},
    )


async def test_metadata_comes_from_the_state_and_from_the_opening(store: CountingStore) -> None:
    chats = Sessions(Chat, kind="chat", metadata=about, store=store)
    async with chats.open("s", parent="p", labels={"team": "a", "mood": "bad"}) as chat:
        chat.lines += ["hi", "there"]
    expected = SessionMetadata(
        kind="chat",
        name="hi",
        parent="p",
        labels={"team": "a", "mood": "good"},
        message_count=2,
        participants=("user", "model"),
    )
    record = await store.load("s")
    assert record is not None
    assert record.metadata == expected


async def test_labels_of_an_application_name_no_resources(store: CountingStore) -> None:
    given = {"affinity.resource/box": "r"}
    with pytest.raises(InvalidOptions, match="name the resources"):
        Sessions(Chat, kind="chat", store=store).open("s", labels=given)
    chats = Sessions(Chat, kind="chat", metadata=lambda _: SessionMetadata(kind="", labels=given), store=store)
    with pytest.raises(InvalidOptions, match="name the resources"):
        async with chats.open("s"):
            pass
    assert await store.load("s") is None


async def test_parent_and_labels_stay_unless_they_are_given(store: CountingStore) -> None:
    chats = Sessions(Chat, kind="chat", store=store)
    async with chats.open("s", parent="p", labels={"a": "1"}):
        pass
    async with chats.open("s") as chat:
        chat.turns = 1
    record = await store.load("s")
    assert record is not None
    assert (record.metadata.parent, record.metadata.labels) == ("p", {"a": "1"})
    async with chats.open("s", labels={"b": "2"}):
        pass
    record = await store.load("s")
    assert record is not None
    assert (record.version, record.metadata.parent, record.metadata.labels) == (3, "p", {"b": "2"})
    async with chats.open("s", parent="p", labels={"b": "2"}):
        pass
    assert store.saves == 3


async def test_metadata_that_the_function_leaves_out_stays(store: CountingStore) -> None:
    await store.save(
        SessionState(
            session_id="s",
            state=b"{}",
            metadata=SessionMetadata(kind="chat", name="imported", message_count=5, participants=("x",)),
        )
    )
    async with Sessions(Chat, kind="chat", store=store, metadata=lambda _: SessionMetadata()).open("s") as chat:
        chat.turns = 1
    record = await store.load("s")
    assert record is not None
    assert record.metadata == SessionMetadata(kind="chat", name="imported", message_count=5, participants=("x",))


@pytest.mark.parametrize("evicted", [False, True])
async def test_what_is_left_out_stays_whether_the_state_is_in_memory_or_not(host: Host, evicted: bool) -> None:
    def titled(chat: Chat) -> SessionMetadata:
        return about(chat) if chat.turns == 1 else SessionMetadata()

    chats = Sessions(Chat, kind="chat", metadata=titled)
    await host.say(chats, "hi")
    first = (await host.stored()).metadata
    if evicted:
        await chats._lost_all()
    await host.say(chats, "there")
    assert (await host.stored()).version == 2
    assert (await host.stored()).metadata == first
    assert first.name == "hi"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parent": ""}, "parent"),
        ({"parent": "s"}, "its own parent"),
        ({"labels": {"a": ""}}, "label 'a'"),
        ({"labels": {"\n": "a"}}, "label key"),
        ({"labels": {str(n): "x" for n in range(MAX_LABELS + 1)}}, f"limit of {MAX_LABELS}"),
    ],
)
def test_parent_and_labels_are_checked_at_the_opening(options: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidId, InvalidOptions), match=message):
        Sessions(Chat, store=CountingStore()).open("s", **options)


@pytest.mark.parametrize(
    "said",
    [
        SessionMetadata(name="two\nlines"),
        SessionMetadata(message_count=-1),
        SessionMetadata(participants=["x"] * (MAX_PARTICIPANTS + 1)),
        SessionMetadata(participants=[""]),
        SessionMetadata(participants="user"),
        SessionMetadata(labels={str(n): "x" for n in range(MAX_LABELS + 1)}),
    ],
)
async def test_metadata_out_of_bounds_is_not_saved(store: CountingStore, said: SessionMetadata) -> None:
    with pytest.raises((InvalidId, InvalidOptions)):
        async with Sessions(Chat, metadata=lambda _: said, store=store).open("s"):
            pass
    assert store.saves == 0


# --- size -------------------------------------------------------------------------------------------------------------


async def test_a_large_state_is_packed_and_comes_back(host: Host) -> None:
    chats = Sessions(Chat, kind="chat")
    text = "word " * 5_000_000  # 25 MB
    ctx = host.activity()
    async with chats.open(ctx) as chat:
        chat.lines.append(text)
    await host.finish(ctx)
    record = await host.stored()
    assert record.encoding == "zlib"
    assert len(record.state) < len(text) // 10
    assert (await host.read(chats, epoch=2)).lines == [text]
    assert (await host.stored()).version == 1


async def test_a_small_state_stays_plain(host: Host) -> None:
    chats = Sessions(Chat, kind="chat")
    for length, encoding in ((COMPRESS_STATE_ABOVE // 2, "plain"), (COMPRESS_STATE_ABOVE, "zlib")):
        ctx = host.activity()
        async with chats.open(ctx) as chat:
            chat.lines = ["x" * length]
        await host.finish(ctx)
        assert (await host.stored()).encoding == encoding


async def test_a_state_over_the_limit_is_refused_in_the_block(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("affinity.session.codec.MAX_STATE_BYTES", 1000)
    chats = Sessions(Chat, kind="chat")
    ctx = host.activity()
    with pytest.raises(PayloadTooLarge, match="keep large data elsewhere"):
        async with chats.open(ctx) as chat:
            chat.lines.append("x" * 1000)
    host.settle(ctx, False)
    assert (await host.read(chats)).lines == []


# --- overrides --------------------------------------------------------------------------------------------------------


async def test_overrides_replace_their_fields_and_all_others_stay(store: CountingStore) -> None:
    chats = Sessions(Chat, kind="chat", store=store)
    async with chats.open("s") as chat:
        chat.lines, chat.turns = ["a"], 1
    for _ in range(2):  # twice is the same as once: no doubled lists
        async with chats.open("s", overrides={"lines": ["b", "c"]}) as chat:
            assert (chat.lines, chat.turns) == (["b", "c"], 1)
    assert store.saves == 2
    async with chats.open("s", overrides=Chat(turns=0)) as chat:
        assert (chat.lines, chat.turns) == (["b", "c"], 0)


async def test_overrides_are_not_shared_with_the_state(store: CountingStore) -> None:
    chats, overrides = Sessions(Chat, store=store), Chat(lines=["a"])
    opening = chats.open("s", overrides=overrides)
    async with opening as chat:
        chat.lines.append("b")
    assert overrides.lines == ["a"]


async def test_overrides_apply_to_a_cached_state_and_to_a_new_one(host: Host) -> None:
    chats = Sessions(Chat, initial=lambda _: Chat(turns=9))
    for _ in range(2):
        ctx = host.activity()
        async with chats.open(ctx, overrides={"lines": ["x"]}) as chat:
            assert (chat.lines, chat.turns) == (["x"], 9)
        await host.finish(ctx)
    assert (await host.stored()).version == 1


async def test_overrides_of_dataclasses_and_frozen_states(store: CountingStore) -> None:
    async with Sessions(Notes, store=store).open("s", overrides={"on": "2021-02-03"}) as notes:
        assert notes.on == date(2021, 2, 3)
    async with Sessions(Fixed, store=store).open("f", overrides={"pair": [1, 2]}) as fixed:
        assert fixed == Fixed(pair=(1, 2))

    class Frozen(BaseModel):
        model_config = ConfigDict(frozen=True)
        number: int = 0
        other: int = 1

    async with Sessions(Frozen, store=store).open("z", overrides={"number": 5}):
        pass
    async with Sessions(Frozen, store=store).open("z", overrides=Frozen(other=2)) as frozen:
        assert frozen == Frozen(number=5, other=2)


async def test_what_the_whole_state_refuses_is_not_kept(host: Host) -> None:
    class Budget(BaseModel):
        model_config = ConfigDict(validate_assignment=True)
        spent: int = 0
        limit: int = 10

        @model_validator(mode="after")
        def check(self) -> Self:
            if self.spent > self.limit:
                raise ValueError("too much")
            return self

    budgets = Sessions(Budget)
    ctx = host.activity()
    with pytest.raises(InvalidOptions, match="too much"):
        async with budgets.open(ctx, overrides={"spent": 11}):
            pytest.fail("code has run")
    await host.finish(ctx)
    assert (await host.read(budgets)).spent == 0


@pytest.mark.parametrize(
    ("state", "overrides"),
    [
        (list, ["a"]),
        (dict, {"a": 1}),
        (Chat, {"line": []}),
        (Chat, {"turns": "many"}),
        (Chat, Titled(title="x")),
        (Notes, Notes()),
    ],
)
def test_overrides_that_do_not_fit_are_refused(state: Any, overrides: Any) -> None:
    with pytest.raises(InvalidOptions, match="overrides"):
        Sessions(state, store=CountingStore()).open("s", overrides=overrides)


def test_a_class_that_differs_is_found_in_the_first_writes_and_in_one_of_64_later() -> None:
    """What is equal, such as a dict and a defaultdict, is not looked at each time."""
    states = JsonCodec(dict[str, int])
    found = []
    for number in range(1, 200):
        state: dict[str, int] = defaultdict(int, a=1)
        raw = states.dump(state)
        if not states.is_certain(raw) and states.match(state, raw, states.read(raw))[1]:
            found.append(number)
    assert found == [*range(1, 17), 64, 128, 192]
