"""Messages with a key, which an instance gets once, and the replies to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from affinity.limits import MAX_PAYLOAD_BYTES
from affinity.provider.contract import (
    Delivery,
    Generation,
    InstanceUpdate,
    KeyState,
    MessageKey,
    MessageReply,
    NewMessage,
    OrchestrationItem,
    Quotas,
    Retention,
)
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import LONG_LEASE, message_ids, new_instance, payloads, turn
from affinity_conformance.providers.cluster import Cluster, concurrently
from affinity_conformance.providers.peer import Peer

DONE = InstanceUpdate(status="completed", output='"done"')


def keyed(key: str | None, payload: str = "m", instance_id: str = "i", limit: int | None = 100) -> NewMessage:
    """A message with a key."""
    return NewMessage(instance_id=instance_id, payload=payload, unread_limit=limit, key=key)


class ReplyRules(Rules):
    """`NewMessage.key`, `Turn.replies`, `get_replies`."""

    async def test_an_instance_gets_one_message_of_a_key(self, cluster: Cluster) -> None:
        """The first message of a key is delivered, others are repeated; in one batch too, and after the turn that
        consumed it (contract: send_message).
        """
        a, at = await cluster.owner("a", "i")
        batch = [keyed("k", "1"), keyed(None, "2"), keyed("k", "3"), keyed("l", "4"), keyed(None, "5")]
        assert await send(a, *batch) == ["delivered", "delivered", "repeated", "delivered", "delivered"]
        assert await send(a, keyed("l"), keyed("k"), keyed("m", "6")) == ["repeated", "repeated", "delivered"]
        (item,) = await a.take_instances()
        assert payloads(item) == ["start", "1", "2", "4", "5", "6"]
        await a.commit_one(at, consumed=message_ids(item))
        assert await send(a, keyed("k")) == ["repeated"]

    async def test_a_key_is_of_one_instance(self, cluster: Cluster) -> None:
        """Two instances may get messages of one key, and so may an instance that is created again under an id
        (contract: send_message).
        """
        a, first = await cluster.owner("a", "i")
        await a.own("j")
        assert await send(a, keyed("k"), keyed("k", instance_id="j")) == ["delivered"] * 2
        await a.provider.delete_instance(["i"], force=True)
        assert await send(a, keyed("k")) == ["unknown"]
        second = await a.own("i")
        assert await states(a, "k") == [state(second, is_known=False)]
        of_first = NewMessage(instance_id="i", payload="m", generation=first.generation, key="k")
        of_second = NewMessage(instance_id="i", payload="m", generation=second.generation, key="k")
        assert await send(a, of_first, of_second, of_first) == ["unknown", "delivered", "unknown"]

    async def test_a_refused_message_leaves_its_key_free(self, cluster: Cluster) -> None:
        """A message that is refused is not the first of its key: it may be sent again (contract: send_message)."""
        a, at = await cluster.owner("a", "i")
        await a.commit_one(at, consumed=message_ids((await a.take_instances())[0]))
        assert await send(a, keyed("k", limit=1), keyed("l", limit=1), keyed("l", limit=1)) == [
            "delivered",
            "full",
            "full",
        ]
        assert await send(a, keyed("k", limit=1), keyed("l", limit=1)) == ["repeated", "full"]
        assert await send(a, keyed("l", limit=2)) == ["delivered"]
        await a.provider.set_quotas(Quotas(instance_bytes=1_000))
        assert await send(a, keyed("m", "x" * 1_000), keyed("m", "y")) == ["over_quota", "over_quota"]
        assert await send(a, keyed("m", "y")) == ["delivered"]

    async def test_a_repeated_message_is_reported_in_each_status_of_the_instance(self, cluster: Cluster) -> None:
        """A finished instance refuses new keys, and repeats known ones (contract: send_message)."""
        a, at = await cluster.owner("a", "i")
        assert await send(a, keyed("k"), keyed("x", instance_id="none")) == ["delivered", "unknown"]
        await a.commit_one(at, update=DONE)
        assert await send(a, keyed("k"), keyed("l"), keyed("l")) == ["repeated", "finished", "finished"]
        assert await states(a, "k", "l") == [
            state(at, status="completed"),
            state(at, status="completed", is_known=False),
        ]

    async def test_of_concurrent_messages_of_a_key_one_is_delivered(self, cluster: Cluster) -> None:
        """Two calls at the same time deliver one message (contract: send_message)."""
        a = await cluster.worker("a")
        peers = [await cluster.open() for _ in range(4)]
        await a.own("i")
        for n in range(10):
            sent = await concurrently(*(partial(peer.send_message, [keyed(f"{n}a"), keyed(f"{n}b")]) for peer in peers))
            for of_key in zip(*sent, strict=True):
                assert sorted(of_key) == ["delivered", *["repeated"] * 3]
        assert len(payloads((await a.take_instances())[0])) == 21

    async def test_a_reply_commits_with_its_turn(self, cluster: Cluster) -> None:
        """A reply is there when the turn is committed, and not when it is refused (contract: Turn.replies)."""
        a, at = await cluster.owner("a", "i")
        await send(a, keyed("k"), keyed("l"))
        assert await states(a, "k", "none") == [state(at), state(at, is_known=False)]
        late = turn(at, execution_id=7, replies=[MessageReply("k", '"late"')])
        assert not (await a.commit(late))[0].committed
        assert await states(a, "k") == [state(at)]
        await a.commit_one(at, replies=[MessageReply("k", '{"é":1}')], update=InstanceUpdate(status="running"))
        assert await states(a, "l", "k") == [
            state(at, status="running"),
            state(at, status="running", reply='{"é":1}'),
        ]

    async def test_the_first_reply_counts(self, cluster: Cluster) -> None:
        """A message has one reply: later ones are ignored, in one turn too (contract: MessageReply)."""
        a, at = await cluster.owner("a", "i")
        await send(a, keyed("k"))
        at = await a.go_on(at, replies=[MessageReply("k", "1"), MessageReply("k", "2")])
        await a.commit_one(at, replies=[MessageReply("k", "3"), MessageReply("unasked", "4")])
        assert [found and found.reply for found in await states(a, "k", "unasked")] == ["1", "4"]

    async def test_replies_of_a_batch_of_turns_with_all_else(self, cluster: Cluster) -> None:
        """Replies of several turns commit together with releases, states and updates (contract: Turn.replies)."""
        a = await cluster.worker("a")
        ats = [await a.own(name) for name in ("i", "j", "l")]
        turns = [
            turn(at, replies=[MessageReply("k", f'"{at.instance_id}"')], release_sessions=["s"], update=DONE)
            for at in ats[:2]
        ]
        results = await a.commit(*turns, turn(ats[2]))
        assert [result.committed for result in results] == [True] * 3
        found = await a.provider.get_replies([MessageKey(name, "k") for name in ("j", "l", "i", "none")])
        assert [reply and reply.reply for reply in found] == ['"j"', None, '"i"', None]
        assert [reply is None for reply in found] == [False, False, False, True]

    async def test_an_end_without_a_reply_is_seen(self, cluster: Cluster) -> None:
        """The status and the error of the instance come with the answer (contract: KeyState)."""
        a, at = await cluster.owner("a", "i")
        await send(a, keyed("k"))
        await a.commit_one(at, update=InstanceUpdate(status="failed", error='{"type":"E"}'))
        assert await states(a, "k") == [state(at, status="failed", error='{"type":"E"}')]

    async def test_replies_are_read_as_many_as_fit(self, cluster: Cluster) -> None:
        """Replies behind ``max_bytes`` are left out, at least one is not, and all say that they are there (contract:
        get_replies).
        """
        a, at = await cluster.owner("a", "i")
        await a.commit_one(at, replies=[MessageReply(str(n), f'"{n}{"é" * 50}"') for n in range(4)])
        wanted = [MessageKey("i", key) for key in ("3", "none", "0", "1", "2")]
        found = await a.provider.get_replies(wanted, max_bytes=104)
        assert [reply and reply.is_answered for reply in found] == [True, False, True, True, True]
        assert [reply and reply.reply and reply.reply[1] for reply in found] == ["3", None, "0", None, None]
        (first, *_) = await a.provider.get_replies(wanted, max_bytes=1)
        assert first is not None
        assert first.reply is not None

    async def test_many_and_large(self, cluster: Cluster) -> None:
        """A batch of a thousand keys, and a reply of the largest size (limits: MAX_BATCH, MAX_PAYLOAD_BYTES)."""
        a, at = await cluster.owner("a", "i")
        keys = [f"k{n}" for n in range(1_000)]
        assert await send(a, *(keyed(key, limit=10_000) for key in keys)) == ["delivered"] * 1_000
        large = f'"{"x" * (MAX_PAYLOAD_BYTES - 2)}"'
        await a.commit_one(at, replies=[MessageReply("k7", large), *(MessageReply(key, "1") for key in keys[500:])])
        found = await states(a, *keys)
        assert found[7] is not None
        assert found[7].reply == large
        assert [reply and reply.reply for reply in found[400:600]] == [None] * 100 + ["1"] * 100

    async def test_keys_and_replies_go_with_the_instance(self, cluster: Cluster) -> None:
        """Deletion removes them, by hand and by retention (contract: send_message)."""
        a, at = await cluster.owner("a", "i")
        await send(a, keyed("k"))
        await a.commit_one(at, replies=[MessageReply("k", "1")], update=DONE)
        assert list(await a.provider.delete_instance(["i"])) == ["deleted"]
        assert await states(a, "k") == [None]
        at = await a.own("i")
        assert await states(a, "k") == [state(at, is_known=False)]

    async def test_old_keys_are_removed(self, cluster: Cluster) -> None:
        """Keys that were sent or answered long ago are removed with the histories of as old executions; a reply that
        comes later is stored all the same (contract: prune_histories).
        """
        a, at = await cluster.owner("a", "i")
        await send(a, keyed("waiting"), keyed("answered"))
        await cluster.advance(100)
        at = await a.go_on(at, replies=[MessageReply("answered", "1")])
        await send(a, keyed("new"))
        await a.provider.prune_histories(50, dry_run=True)
        assert await known(a, "waiting", "answered", "new") == [True, True, True]
        await a.provider.prune_histories(50)
        assert await known(a, "waiting", "answered", "new") == [False, True, True]
        await a.commit_one(at, replies=[MessageReply("waiting", "2")])
        assert [found and found.reply for found in await states(a, "waiting", "answered")] == ["2", "1"]
        await cluster.advance(100)
        await a.provider.sweep(
            interval=0,
            session_retention=LONG_LEASE,
            worker_retention=LONG_LEASE,
            retention=Retention(histories=50),
        )
        assert await known(a, "waiting", "answered", "new") == [False] * 3

    @pytest.mark.parametrize("key", ["", "é" * 128, "a'b\"c", "k" * 256])
    async def test_a_key_is_any_text_of_an_id(self, cluster: Cluster, key: str) -> None:
        """Keys are compared as they are (contract: MessageKey)."""
        a, at = await cluster.owner("a", "i")
        assert await send(a, keyed(key), keyed(key), keyed(key.upper() + "x")) == [
            "delivered",
            "repeated",
            "delivered",
        ]
        await a.commit_one(at, replies=[MessageReply(key, "1")])
        assert [found and found.reply for found in await states(a, key)] == ["1"]

    async def test_a_deletion_at_the_same_time_leaves_no_key(self, cluster: Cluster) -> None:
        """Whichever comes first, an instance that is created again knows no key (contract: send_message)."""
        a = await cluster.worker("a")
        b = await cluster.open()
        for n in range(10):
            await a.provider.create_instance([new_instance("i", generation=Generation("same"))])
            calls: list[Callable[[], Awaitable[object]]] = [
                partial(b.send_message, [keyed(str(n))]),
                partial(a.provider.delete_instance, ["i"], force=True),
            ]
            await concurrently(*calls)
            await a.provider.create_instance([new_instance("i", generation=Generation("same"))])
            assert await known(a, str(n)) == [False]
            await a.provider.delete_instance(["i"], force=True)


async def send(peer: Peer, *messages: NewMessage) -> list[Delivery]:
    """The deliveries of the messages."""
    return list(await peer.provider.send_message(messages))


async def states(peer: Peer, *keys: str) -> list[KeyState | None]:
    """The states of messages to the instance of these tests."""
    return list(await peer.provider.get_replies([MessageKey("i", key) for key in keys]))


async def known(peer: Peer, *keys: str) -> list[bool]:
    """Return True if the instance has received messages of these keys."""
    return [found is not None and found.is_known for found in await states(peer, *keys)]


def state(
    at: OrchestrationItem,
    *,
    status: object = "pending",
    is_known: bool = True,
    reply: str | None = None,
    error: str | None = None,
) -> KeyState:
    """The state of a key of this instance."""
    return KeyState(
        generation=at.generation,
        name="flow",
        status=status,  # type: ignore[arg-type]
        error=error,
        is_known=is_known,
        is_answered=reply is not None,
        reply=reply,
    )
