"""A process whose codec has not the key of the database does not start."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import psycopg
import pytest

import affinity
from affinity import Client, PayloadContext, Worker
from affinity.encryption import Encryption
from affinity.errors import CodecFailed, CodecMismatch, PayloadUnreadable
from affinity.payloads import open_coded
from affinity.payloads.check_values import check_keys
from affinity.payloads.frames import read_frame
from affinity.provider import open_provider
from tests.payloads.coded_app import app, greeting
from tests.payloads.xor import XorCodec
from tests.support.extras import needs

pytestmark = [pytest.mark.anyio, needs("cryptography")]

OLD, NEW = {"1": b"1" * 32}, {"2": b"2" * 32}
BOTH = {**OLD, **NEW}
CHANGED = {"1": b"x" * 32}


@pytest.fixture
def url(any_url: str) -> str:
    return any_url


async def run_once(url: str, codec: Any, name: str = "name") -> None:
    """A worker and a client do something."""
    async with Worker(app, url, codec=codec), Client(url, codec=codec) as client:
        handle = await client.start(greeting, name)
        await handle.raise_event("more", "event")
        assert await handle.wait(timeout=30) == [f"secret for {name}", "event"]


async def refused(url: str, codec: Any, text: str, *, clients: bool = True) -> None:
    """Neither a worker nor a client, nor what opens the records alone, starts with this codec."""
    with pytest.raises(CodecMismatch, match=text):
        async with Worker(app, url, codec=codec):
            raise AssertionError
    if clients:
        with pytest.raises(CodecMismatch, match=text):
            async with Client(url, codec=codec):
                raise AssertionError
        with pytest.raises(CodecMismatch, match=text):
            async with affinity.open_store(url, codec=codec):
                raise AssertionError


async def label_of(url: str) -> str:
    provider = await open_coded(url, None)
    try:
        value = (await provider.read_identity()).check_value
    finally:
        await provider.aclose()
    assert value is not None
    return read_frame(value).label


async def test_a_wrong_key_and_no_codec_are_refused(url: str) -> None:
    await run_once(url, Encryption(OLD))
    await refused(url, Encryption(NEW), r"with key 1: encrypted, key 1, which is not given. Give it that key too")
    await refused(url, Encryption(CHANGED), "or the key is another one")
    await refused(url, XorCodec(), "with key 1: it was not encoded by this codec")
    await refused(url, Encryption(NEW, allow_plain=True), "which is not given")
    await refused(url, None, "give codec=, or set AFFINITY_CODEC", clients=False)
    async with Client(url) as client:  # shows what is not encoded
        (shown,) = [item async for item in client.list_instances()]
        assert shown.status == "completed"
    await run_once(url, Encryption(OLD))


async def test_a_rotation_keeps_the_value_right(url: str) -> None:
    await run_once(url, Encryption(OLD))
    await run_once(url, Encryption(BOTH, write="1"))  # all processes can read the new key
    assert await label_of(url) == "key 1"
    await run_once(url, Encryption(BOTH))
    assert await label_of(url) == "key 2"
    await refused(url, Encryption(OLD), "key 2, which is not given")
    await run_once(url, Encryption(BOTH, write="1"))  # a rollback
    assert await label_of(url) == "key 1"
    await refused(url, Encryption(NEW), "key 1, which is not given")


async def test_a_re_encryption_keeps_the_value_right(url: str) -> None:
    await run_once(url, Encryption(OLD))
    async with Client(url, codec=Encryption(BOTH)) as client:
        await client.reencrypt(dry_run=True)
        assert await label_of(url) == "key 1"
        await client.reencrypt()
    assert await label_of(url) == "key 2"
    await run_once(url, Encryption(NEW))


async def test_a_database_in_the_clear_may_be_encoded_later(url: str) -> None:
    await run_once(url, None)
    async with Client(url, codec=Encryption(OLD, allow_plain=True)):  # a client changes nothing
        pass
    await run_once(url, None)
    await run_once(url, Encryption(OLD, allow_plain=True))
    await refused(url, None, "give codec=", clients=False)
    await refused(url, Encryption(NEW, allow_plain=True), "key 1, which is not given")


async def test_after_a_lost_key_the_value_is_deleted(url: str) -> None:
    await run_once(url, Encryption(OLD))
    await refused(url, Encryption(NEW), "docs/run/encryption.md#a-lost-key")
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute("UPDATE database_identity SET check_value = NULL")
    else:
        with psycopg.connect(url) as server:
            server.execute("UPDATE affinity.database_identity SET check_value = NULL")
    await refused(url, None, "give codec=", clients=False)
    await run_once(url, Encryption(NEW))
    assert await label_of(url) == "key 2"


class AwayCodec(XorCodec):
    """Its key service does not answer until it has been asked twice."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def decode(self, data: bytes, context: PayloadContext) -> bytes:
        self.asked += 1
        if self.asked <= 2:
            raise TimeoutError("no answer")
        return await super().decode(data, context)


async def test_a_key_service_that_is_away_is_no_wrong_key(url: str) -> None:
    """A worker tries again, as if the database did not answer; a client gets the error."""
    await run_once(url, XorCodec())
    with pytest.raises(CodecFailed, match="TimeoutError: no answer"):
        async with Client(url, codec=AwayCodec()):
            raise AssertionError
    codec = AwayCodec()
    async with Worker(app, url, codec=codec):
        assert codec.asked >= 3


async def test_two_first_workers_of_different_keys(url: str) -> None:
    """The one that came second is refused, although none was marked when it looked."""
    await affinity.migrate(url)
    provider = await open_provider(url)
    try:
        before = await provider.read_identity()
        await run_once(url, Encryption(OLD))
        with pytest.raises(CodecMismatch, match="key 1, which is not given"):
            await check_keys(provider, Encryption(NEW), before, keep=True)
    finally:
        await provider.aclose()
    assert await label_of(url) == "key 1"


async def test_the_value_of_another_database_is_refused(url: str) -> None:
    await run_once(url, XorCodec())
    provider = await open_provider(url)
    try:
        identity = (await provider.read_identity())._replace(name="another")
        with pytest.raises(CodecMismatch) as caught:
            await check_keys(provider, XorCodec(), identity, keep=False)
        assert isinstance(caught.value.__cause__, PayloadUnreadable)
    finally:
        await provider.aclose()
