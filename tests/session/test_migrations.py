"""Schema migrations: the shortest chain, its order, and what goes wrong with it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from affinity import Sessions
from affinity.errors import (
    InvalidOptions,
    SessionLoadFailed,
    SessionMigrationAmbiguous,
    SessionMigrationFailed,
    SessionMigrationMissing,
)
from affinity.session import SessionFilter, SessionMetadata, SessionState
from affinity.session.migrations import Migrations
from tests.session.activities import CountingStore, Host

pytestmark = pytest.mark.anyio


class Path(BaseModel):
    steps: list[str] = []


def made_for(version: int, *edges: tuple[int, int]) -> Sessions[Path]:
    """Steps that write down that they ran."""
    paths = Sessions(Path, kind="path", schema_version=version)
    for start, end in edges:

        def migrate(plain: dict[str, Any], name: str = f"{start}-{end}") -> dict[str, Any]:
            return {"steps": [*plain["steps"], name]}

        paths.register_migration(start, end, migrate)
    return paths


@pytest.fixture
async def host() -> Host:
    """With a record in version 1."""
    host = Host()
    old = SessionState(session_id="s", state=b'{"steps":["old"]}', metadata=SessionMetadata(kind="path"))
    await host.database.save(old)
    return host


async def opened(host: Host, paths: Sessions[Path]) -> list[str]:
    async with paths.open("s", store=host.database, auto_save=False) as path:
        return path.steps


@pytest.mark.parametrize(
    ("version", "edges", "steps"),
    [
        (1, [(1, 2), (2, 1)], []),
        (2, [(1, 2)], ["1-2"]),
        (4, [(1, 2), (2, 3), (3, 4)], ["1-2", "2-3", "3-4"]),
        (4, [(1, 2), (2, 3), (3, 4), (2, 4)], ["1-2", "2-4"]),
        (4, [(1, 2), (2, 3), (3, 4), (1, 3), (1, 4)], ["1-4"]),
        (3, [(1, 2), (2, 1), (2, 3), (3, 2), (3, 1)], ["1-2", "2-3"]),
        (5, [(1, 2), (1, 3), (2, 4), (3, 5), (4, 5)], ["1-3", "3-5"]),
        (0, [(1, 0)], ["1-0"]),  # older code reads what newer code wrote
        (4, [(1, 4), (1, 2), (1, 3), (2, 5), (3, 5)], ["1-4"]),  # ambiguous, but elsewhere
    ],
)
async def test_the_shortest_chain_is_run_in_order(
    host: Host, version: int, edges: list[tuple[int, int]], steps: list[str]
) -> None:
    assert await opened(host, made_for(version, *edges)) == ["old", *steps]


@pytest.mark.parametrize(
    ("version", "edges", "reached"),
    [
        (2, [], "registered: none; from 1 they reach 1"),
        (3, [(1, 2)], "registered: 1 -> 2; from 1 they reach 1, 2"),
        (4, [(1, 2), (2, 1), (3, 4)], "registered: 1 -> 2, 2 -> 1, 3 -> 4; from 1 they reach 1, 2"),
    ],
)
async def test_without_a_chain_the_load_fails(
    host: Host, version: int, edges: list[tuple[int, int]], reached: str
) -> None:
    before = await host.stored()
    with pytest.raises(SessionMigrationMissing) as caught:
        await opened(host, made_for(version, *edges))
    error = caught.value
    assert (error.session_id, error.from_version, error.to_version) == ("s", 1, version)
    assert (error.registered, error.description) == (len(edges), reached)
    assert await host.stored() == before


@pytest.mark.parametrize(
    ("edges", "count"),
    [
        ([(1, 2), (2, 5), (1, 3), (3, 5)], 2),
        ([(1, 2), (1, 3), (2, 4), (3, 4), (4, 5)], 2),
        ([(1, 2), (1, 3), (1, 4), (2, 5), (3, 5), (4, 5)], 3),
    ],
)
async def test_two_shortest_chains_are_ambiguous(host: Host, edges: list[tuple[int, int]], count: int) -> None:
    with pytest.raises(SessionMigrationAmbiguous, match=f"{count} chains") as caught:
        await opened(host, made_for(5, *edges))
    assert (caught.value.session_id, caught.value.from_version, caught.value.to_version) == ("s", 1, 5)


@pytest.mark.parametrize(
    ("edges", "start"),
    [
        ([(1, 2), (2, 5), (1, 3), (3, 5)], 1),
        ([(4, 5), (2, 3), (2, 4), (3, 5)], 2),
        ([(7, 6), (7, 8), (6, 5), (8, 5)], 7),  # from newer code, back
    ],
)
def test_two_shortest_chains_are_found_before_a_record_meets_them(edges: list[tuple[int, int]], start: int) -> None:
    paths = made_for(5, *edges)
    with pytest.raises(SessionMigrationAmbiguous, match="2 chains") as caught:
        paths._check_migrations()
    assert (caught.value.from_version, caught.value.to_version) == (start, 5)


@pytest.mark.parametrize("edges", [[], [(1, 2), (2, 5)], [(1, 2), (1, 3), (2, 4), (3, 4)], [(1, 2), (1, 3), (1, 5)]])
def test_nothing_else_is_found(edges: list[tuple[int, int]]) -> None:
    """Two chains to another version do not count, nor two that are longer than a third."""
    made_for(5, *edges)._check_migrations()


@pytest.mark.parametrize("version", [True, 1.0, "1", -1, 2**31])
def test_versions_are_integers_that_a_record_can_have(version: Any) -> None:
    paths = Sessions(Path, kind="path")
    for start, end in ((version, 5), (5, version)):
        with pytest.raises(InvalidOptions, match="schema version of a migration"):
            paths.register_migration(start, end, lambda plain: plain)
    with pytest.raises(InvalidOptions, match="schema_version"):
        SessionFilter(schema_version=version)
    with pytest.raises(InvalidOptions, match="schema_version"):
        Sessions(Path, schema_version=version)


def test_a_step_is_registered_once() -> None:
    paths = made_for(2, (1, 2))
    with pytest.raises(SessionMigrationAmbiguous, match="1 to 2 is registered twice"):
        paths.register_migration(1, 2, dict)
    with pytest.raises(InvalidOptions, match="nowhere"):
        paths.register_migration(2, 2, dict)


async def test_a_step_that_raises_ends_the_chain(host: Host) -> None:
    paths, later = made_for(4, (1, 2)), []

    @paths.migration(2, 3)
    async def broken(plain: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("title")

    @paths.migration(3, 4)
    def never(plain: dict[str, Any]) -> dict[str, Any]:
        later.append(plain)
        return plain

    before = await host.stored()
    with pytest.raises(SessionMigrationFailed, match="from 2 to 3 raised KeyError: 'title'") as caught:
        await opened(host, paths)
    assert isinstance(caught.value.__cause__, KeyError)
    assert (caught.value.from_version, caught.value.to_version, later) == (2, 3, [])
    assert await host.stored() == before


async def test_a_step_that_returns_nothing_has_failed(host: Host) -> None:
    paths = made_for(2)
    paths.register_migration(1, 2, lambda plain: plain.update(steps=[]))
    with pytest.raises(SessionMigrationFailed, match="returned None"):
        await opened(host, paths)


async def test_a_step_may_return_what_the_type_does_not_take(host: Host) -> None:
    paths = made_for(2)
    paths.register_migration(1, 2, lambda _: {"steps": 3})
    with pytest.raises(SessionLoadFailed, match="steps: Input should be a valid array"):
        await opened(host, paths)


async def test_an_async_step(host: Host) -> None:
    paths = made_for(2)

    @paths.migration(1, 2)
    async def migrate(plain: dict[str, Any]) -> dict[str, Any]:
        return {"steps": [*plain["steps"], "async"]}

    assert await opened(host, paths) == ["old", "async"]


async def test_a_migrated_state_is_written_at_the_next_clean_end_even_unchanged(host: Host) -> None:
    paths = Sessions(Path, kind="path", schema_version=2)
    paths.register_migration(1, 2, lambda plain: plain)
    for _ in range(2):
        await host.read(paths)
        record = await host.stored()
        assert (record.schema_version, record.version, json.loads(record.state)) == (2, 2, {"steps": ["old"]})


async def test_a_migration_whose_write_is_refused_runs_again(host: Host) -> None:
    paths = made_for(2, (1, 2))
    ctx = host.activity()
    async with paths.open(ctx) as path:
        path.steps.append("x")
    await host.finish(ctx, commit=False)
    assert (await host.stored()).schema_version == 1
    assert (await host.read(paths)).steps == ["old", "1-2"]


async def test_steps_get_whatever_the_codec_parses() -> None:
    numbers = Sessions(list[int], kind="numbers", schema_version=2)
    numbers.register_migration(1, 2, lambda plain: [number * 2 for number in plain])
    store = CountingStore()
    await store.save(SessionState(session_id="s", state=b"[1,2]", metadata=SessionMetadata(kind="numbers")))
    async with numbers.open("s", store=store) as state:
        assert state == [2, 4]


async def test_a_long_chain_is_found_quickly() -> None:
    migrations = Migrations()
    for version in range(500):
        migrations.register(version, version + 1, lambda plain: plain + 1)
        migrations.register(version + 1, version, lambda plain: plain - 1)
    assert await migrations.apply("s", 0, 0, 500) == 500
    assert await migrations.apply("s", 0, 500, 0) == -500
