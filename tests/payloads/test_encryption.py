"""`affinity.encryption`, without a database."""

from __future__ import annotations

import asyncio
import secrets
from base64 import b64encode
from pathlib import Path

import pytest

from affinity import PayloadCodec, PayloadContext
from affinity.encryption import Encryption
from affinity.errors import InvalidOptions, PayloadUnreadable

AT = PayloadContext("database", "chat-17", "event.input")
KEYS = {"6": b"6" * 32, "7": b"7" * 32}


class Service:
    """A key service in memory, which counts its calls."""

    def __init__(self) -> None:
        self.key_id = "k1"
        self.calls: list[str] = []
        self.fails = False
        self._known: dict[bytes, bytes] = {}

    async def encrypt(self, data_key: bytes) -> bytes:
        self.calls.append("encrypt")
        await asyncio.sleep(0.01)
        if self.fails:
            raise TimeoutError("no answer")
        encrypted = secrets.token_bytes(40)
        self._known[encrypted] = data_key
        return encrypted

    async def decrypt(self, key_id: str, encrypted: bytes) -> bytes:
        self.calls.append(f"decrypt {key_id}")
        await asyncio.sleep(0.01)
        if encrypted not in self._known:
            raise PayloadUnreadable("no such key")
        return self._known[encrypted]


async def test_a_payload_is_read_by_its_key_alone() -> None:
    codec = Encryption(KEYS)
    assert isinstance(codec, PayloadCodec)
    assert codec.label == "key 7"
    stored = await codec.encode(b"secret", AT)
    assert b"secret" not in stored
    assert stored != await codec.encode(b"secret", AT)
    assert await Encryption({**KEYS, "8": b"8" * 32}).decode(stored, AT) == b"secret"
    assert Encryption(KEYS, write="6").label == "key 6"
    with pytest.raises(PayloadUnreadable, match=r"^encrypted, key 7, which is not given$"):
        await Encryption({"6": KEYS["6"]}).decode(stored, AT)
    with pytest.raises(PayloadUnreadable, match="or the key is another one"):
        await Encryption({"7": b"x" * 32}).decode(stored, AT)


@pytest.mark.parametrize("field", PayloadContext._fields)
@pytest.mark.parametrize("with_service", [False, True])
async def test_a_payload_that_was_moved_is_refused(field: str, with_service: bool) -> None:
    codec = Encryption(service=Service()) if with_service else Encryption(KEYS)
    stored = await codec.encode(b"secret", AT)
    assert await codec.decode(stored, AT) == b"secret"
    with pytest.raises(PayloadUnreadable, match="moved from another place"):
        await codec.decode(stored, AT._replace(**{field: "other"}))


@pytest.mark.parametrize("with_service", [False, True])
async def test_a_payload_that_was_altered_is_refused(with_service: bool) -> None:
    codec = Encryption(service=Service()) if with_service else Encryption(KEYS)
    stored = await codec.encode(b"secret", AT)
    for place in range(len(stored)):
        altered = stored[:place] + bytes([stored[place] ^ 1]) + stored[place + 1 :]
        with pytest.raises(PayloadUnreadable):
            await codec.decode(altered, AT)
    for size in range(len(stored)):
        with pytest.raises(PayloadUnreadable):
            await codec.decode(stored[:size], AT)


async def test_a_key_service_is_asked_once_for_each_object() -> None:
    service = Service()
    codec = Encryption(service=service)
    stored = await asyncio.gather(*[codec.encode(b"secret", AT) for _ in range(5)])
    other = await codec.encode(b"secret", AT._replace(scope="chat-18"))
    assert service.calls == ["encrypt"] * 2
    reader = Encryption(service=service)
    assert await asyncio.gather(*[reader.decode(one, AT) for one in stored]) == [b"secret"] * 5
    assert await reader.decode(other, AT._replace(scope="chat-18")) == b"secret"
    assert service.calls[2:] == ["decrypt k1"] * 2
    with pytest.raises(PayloadUnreadable, match="of a key service, which is not given"):
        await Encryption(KEYS).decode(other, AT)


async def test_a_failure_of_the_key_service_is_no_fault_of_the_payload() -> None:
    service = Service()
    codec = Encryption(service=service)
    service.fails = True
    found = await asyncio.gather(*[codec.encode(b"secret", AT) for _ in range(2)], return_exceptions=True)
    assert [type(error) for error in found] == [TimeoutError] * 2
    service.fails = False
    assert await codec.decode(await codec.encode(b"secret", AT), AT) == b"secret"


async def test_a_cancelled_call_leaves_no_one_waiting() -> None:
    codec = Encryption(service=Service())
    first, second = (asyncio.ensure_future(codec.encode(b"secret", AT)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await codec.decode(await second, AT) == b"secret"


async def test_keys_come_from_files_and_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "6.key").write_bytes(KEYS["6"])
    (tmp_path / "7.key").write_text(b64encode(KEYS["7"]).decode() + "\n")
    codec = Encryption.from_files(tmp_path / "6.key", tmp_path / "7.key")
    stored = await codec.encode(b"secret", AT)
    monkeypatch.setenv("AFFINITY_KEYS", " ".join(f"{name}={b64encode(key).decode()}" for name, key in KEYS.items()))
    assert await Encryption.from_environment().decode(stored, AT) == b"secret"
    assert (codec.label, codec.reads_plain) == ("key 7", False)
    assert Encryption.from_environment(allow_plain=True).reads_plain


def test_what_is_no_key_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidOptions, match="there is no key"):
        Encryption()
    with pytest.raises(InvalidOptions, match="must be 32 bytes"):
        Encryption({"7": b"short"})
    with pytest.raises(InvalidOptions, match="id of a key"):
        Encryption({"seven.": KEYS["7"]})
    with pytest.raises(InvalidOptions, match="is none of the keys 6, 7"):
        Encryption(KEYS, write="8")
    with pytest.raises(InvalidOptions, match="give one of them"):
        Encryption(KEYS, write="7", service=Service())
    with pytest.raises(InvalidOptions, match="cannot be read"):
        Encryption.from_files(tmp_path / "7.key")
    for text in ("", "7", "7=!", f"7={b64encode(b'short').decode()}"):
        monkeypatch.setenv("AFFINITY_KEYS", text)
        with pytest.raises(InvalidOptions):
            Encryption.from_environment()
