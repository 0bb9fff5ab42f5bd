"""`Client.ask`: one event and one reply for each key, for all clients and all calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from affinity import Client, Event, EventValue, ExternalEvent, RuntimeOptions, Start, Worker
from affinity.errors import (
    ClientError,
    ConnectionLost,
    InstanceExists,
    InstanceFinished,
    InvalidInput,
    NoReply,
    NotSerializable,
    UnknownInstance,
    WaitTimeout,
)
from affinity.provider import open_provider
from affinity.provider.contract import KeyState, MessageKey, NewMessage, Provider
from tests.support.ask_app import Answer, Ask, Question, app, oracle
from tests.support.worker_processes import PATIENCE, open_workers

pytestmark = pytest.mark.anyio

OPTIONS = RuntimeOptions.make(poll_interval=30, worker_lease_timeout=90, stall_timeout=90)


def question(text: str) -> EventValue[Answer]:
    return Ask(Question(text=text))


@pytest.fixture
async def client(kept_url: str) -> AsyncIterator[Client]:
    async with Client(kept_url) as client:
        yield client


@pytest.fixture
async def worker(kept_url: str) -> AsyncIterator[Worker]:
    async with Worker(app, kept_url, OPTIONS) as worker:
        yield worker


async def events_of(client: Client, instance_id: str, kind: str) -> list[Any]:
    return [
        record.fields
        for execution in reversed(await client.executions(instance_id))
        for record in await client.history(instance_id, execution_id=execution.execution_id)
        if record.type == kind
    ]


async def test_a_reply_is_typed_and_comes_without_a_poll(worker: Worker, client: Client, kept_url: str) -> None:
    """Neither worker nor client polls in the time of this test; a second call gives the same reply."""
    run = await client.start(oracle, 0, instance_id="o")
    first = await client.ask("o", question("a"), idempotency_key="k", timeout=20)
    assert first == Answer(text="A", number=1)
    assert await run.ask(question("b"), timeout=20) == Answer(text="B", number=2)
    assert await client.ask("o", question("other data"), idempotency_key="k", timeout=20) == first
    async with Client(kept_url) as later:
        assert await later.ask("o", question("a"), idempotency_key="k", timeout=20) == first
    assert [event["data"]["text"] for event in await events_of(client, "o", "event_raised")] == ["a", "b"]
    assert len(await events_of(client, "o", "event_replied")) == 2


async def test_many_ask_at_the_same_time(worker: Worker, client: Client) -> None:
    """Through several executions, each gets the answer to its own question; questions with one key get one."""
    await client.start(oracle, 0, instance_id="o")
    answers: list[tuple[int, Answer]] = []

    async def ask(n: int) -> None:
        answers.append((n % 40, await client.ask("o", question(f"q{n % 40}"), idempotency_key=f"k{n % 40}")))

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            for n in range(80):
                tasks.start_soon(ask, n)
    assert len(answers) == 80
    assert all(answer.text == f"Q{n}" for n, answer in answers)
    assert sorted({answer.number for _, answer in answers}) == list(range(1, 41))


async def test_an_instance_is_started_if_there_is_none(worker: Worker, client: Client) -> None:
    starts: list[Any] = [(oracle, 7), Start("oracle", 7, for_session="s"), Start(oracle, 7, "i2")]
    for n, start in enumerate(starts):
        answer = await client.ask(f"i{n}", question("a"), start=start, idempotency_key="k", timeout=20)
        assert answer == Answer(text="A", number=8)
        assert await client.ask(f"i{n}", question("a"), start=start, idempotency_key="k", timeout=20) == answer
    assert (await client.status("i1")).session_id == "s"
    with pytest.raises(UnknownInstance):
        await client.ask("none", question("a"), timeout=20)
    with pytest.raises(InstanceExists, match="oracle"):
        await client.ask("i0", question("b"), start="another", timeout=20)
    assert await client.ask("i0", question("a"), timeout=20) == Answer(text="A", number=9)  # nothing was sent
    with pytest.raises(InvalidInput, match="is to be started"):
        await client.ask("i0", question("a"), start=Start(oracle, 1, "i1"))


@pytest.mark.parametrize("wrong", ["ask", Ask])
async def test_what_is_no_event_with_data_is_refused(client: Client, wrong: Any) -> None:
    await client.start(oracle, 0, instance_id="o")
    with pytest.raises(InvalidInput, match=r"as in Message\(data\)"):
        await client.ask("o", wrong, timeout=30)
    assert (await client.statistics()).messages["waiting"] == 1


@pytest.mark.parametrize(("text", "status", "error"), [("end", "completed", None), ("fail", "failed", "ValueError")])
async def test_an_end_without_a_reply_is_an_error(
    worker: Worker, client: Client, text: str, status: str, error: str | None
) -> None:
    """For waiting questions, and for repeated ones; replies that were given stay."""
    await client.start(oracle, 0, instance_id="o")
    before = await client.ask("o", question("a"), idempotency_key="a", timeout=20)
    for _ in range(2):
        with pytest.raises(NoReply) as caught:
            await client.ask("o", question(text), idempotency_key="end", timeout=20)
        assert (caught.value.instance_id, caught.value.status, caught.value.error_type) == ("o", status, error)
    assert await client.ask("o", question("a"), idempotency_key="a", timeout=20) == before
    with pytest.raises(InstanceFinished):
        await client.ask("o", question("new"), timeout=20)
    await client.delete("o")
    with pytest.raises(UnknownInstance):
        await client.ask("o", question("a"), idempotency_key="a", timeout=20)


async def test_a_reply_that_comes_late_is_there_for_the_next(client: Client, kept_url: str) -> None:
    await client.start(oracle, 0, instance_id="o")
    with pytest.raises(WaitTimeout, match=r"has not replied within 0\.3 s"):
        await client.ask("o", question("a"), idempotency_key="k", timeout=0.3)
    with pytest.raises(InvalidInput):
        await client.ask("o", question("a"), timeout=-1)
    with pytest.raises(InvalidInput):
        await client.ask("o", question("a"), idempotency_key="")
    async with Worker(app, kept_url, OPTIONS):
        assert await client.ask("o", question("a"), idempotency_key="k", timeout=20) == Answer(text="A", number=1)
        with pytest.raises(NotSerializable, match="reply to event 'ask' must be int"):
            await client.ask("o", Event("ask", Question, reply=int)(Question(text="b")), timeout=20)


async def test_a_deleted_instance_is_not_waited_for(client: Client) -> None:
    await client.start(oracle, 0, instance_id="o")
    errors: list[Exception] = []

    async def ask() -> None:
        try:
            await client.ask("o", question("a"))
        except UnknownInstance as error:
            errors.append(error)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            while (await client.statistics()).messages["waiting"] < 2:
                await anyio.sleep(0.02)
            await client.delete("o", force=True)
    assert len(errors) == 1


async def test_the_end_of_the_client_ends_the_wait(client: Client, kept_url: str) -> None:
    await client.start(oracle, 0, instance_id="o")
    errors: list[Exception] = []

    async def ask(asking: Client) -> None:
        try:
            await asking.ask("o", question("a"))
        except ClientError as error:
            errors.append(error)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks, Client(kept_url) as asking:
            tasks.start_soon(ask, asking)
            while (await client.statistics()).messages["waiting"] < 2:
                await anyio.sleep(0.02)
    assert [str(error) for error in errors] == ["the client was closed during the call"]


class Counting:
    """A provider that counts calls, and may lose the reply to one."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.calls: Counter[str] = Counter()
        self.loses_next = False

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self._provider, name)

    @property
    def timeline(self) -> str:
        return self._provider.timeline

    async def get_replies(self, keys: Sequence[MessageKey]) -> Sequence[KeyState | None]:
        self.calls["get_replies"] += 1
        return await self._provider.get_replies(keys)

    async def send_message(self, messages: Sequence[NewMessage]) -> Any:
        sent = await self._provider.send_message(messages)
        if self.loses_next:
            self.loses_next = False
            raise ConnectionLost("the reply is lost")
        return sent


@pytest.fixture
async def counting(kept_url: str) -> AsyncIterator[Any]:
    provider = await open_provider(kept_url, one_connection=True)
    yield Counting(provider)
    await provider.aclose()


@pytest.mark.parametrize("looks", [0, 1])
async def test_an_instance_that_was_created_again_is_not_waited_for(counting: Any, client: Client, looks: int) -> None:
    """Whether the client has looked for the reply before that, or not: it was not asked."""
    await client.start(oracle, 0, instance_id="o")
    errors: list[Exception] = []

    async def ask() -> None:
        try:
            await asking.ask("o", question("a"))
        except UnknownInstance as error:
            errors.append(error)

    async with Client.from_provider(counting) as asking:
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                while (await client.statistics()).messages["waiting"] < 2 or counting.calls["get_replies"] < looks:
                    await anyio.sleep(0.02)
                await client.delete("o", force=True)
                await client.start(oracle, 0, instance_id="o")
    assert len(errors) == 1


@pytest.mark.slow
async def test_a_thousand_that_wait_cost_one_statement_a_second(counting: Any, client: Client) -> None:
    """Together; and no instance is polled."""
    async with Client.from_provider(counting) as asking, anyio.create_task_group() as tasks:
        await asking.start_many([Start("oracle", 0, f"o{n}") for n in range(100)])
        for n in range(1_000):
            tasks.start_soon(asking.ask, f"o{n % 100}", question("a"))
        with anyio.fail_after(PATIENCE):
            while (await client.statistics()).messages["waiting"] < 1_100:
                await anyio.sleep(0.05)
        await anyio.sleep(1.5)
        counting.calls.clear()
        await anyio.sleep(4.0)
        calls = dict(counting.calls)
        tasks.cancel_scope.cancel()
    assert 1 <= calls.pop("get_replies") <= 5
    assert calls == {}


async def test_an_event_with_a_key_is_sent_again_after_a_lost_reply(counting: Any, kept_url: str) -> None:
    """By the client itself; one without a key is not."""
    async with Client.from_provider(counting) as client, Worker(app, kept_url, OPTIONS):
        await client.start(oracle, 0, instance_id="o")
        counting.loses_next = True
        await client.raise_event("o", question("silence"), idempotency_key="k")
        counting.loses_next = True
        assert await client.ask("o", question("a"), timeout=20) == Answer(text="A", number=2)
        counting.loses_next = True
        with pytest.raises(ConnectionLost):
            await client.raise_event("o", "ask", {"text": "silence"})
        counting.loses_next = True
        mixed = [
            ExternalEvent("o", question("silence"), idempotency_key="l"),
            ExternalEvent("o", "ask", {"text": "silence"}),
        ]
        with pytest.raises(ConnectionLost):
            await client.raise_events(mixed)
        keyed = [ExternalEvent("o", question("silence"), idempotency_key=key) for key in "lmm"]
        assert await client.raise_events(keyed) == ["repeated", "delivered", "repeated"]
        assert await client.ask("o", question("b"), timeout=20) == Answer(text="B", number=7)


@pytest.mark.slow
async def test_replies_survive_workers_that_are_killed(kept_url: str, tmp_path: Path) -> None:
    """A worker dies between the event and the reply, with SIGKILL; each question is answered once, and rightly."""
    note = tmp_path / "note"
    with open_workers(kept_url) as workers:
        doomed = workers.start("a", app="tests.support.ask_app:app")
        async with Client(kept_url) as client:
            asked = Ask(Question(text="poison", note=str(note)))
            answers: list[Answer] = []

            async def ask(key: str) -> None:
                answers.append(await client.ask("o", asked, idempotency_key=key, start=(oracle, 0), timeout=PATIENCE))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, "k")
                tasks.start_soon(ask, "k")
                await anyio.to_thread.run_sync(doomed.wait)
                workers.start("b", app="tests.support.ask_app:app")
            assert answers == [Answer(text="POISON", number=1)] * 2
            assert note.read_text().splitlines() == ["poison"] * 2
            assert len(await events_of(client, "o", "event_raised")) == 1
            assert len(await events_of(client, "o", "event_replied")) == 1
