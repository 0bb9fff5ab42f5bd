"""Encryption of payloads: AES-256-GCM, with keys from files, from the environment or from a key service.

Needs ``pip install "affinity-workflows[encryption]"``. An `Encryption` is a `affinity.PayloadCodec`::

    codec = Encryption.from_environment()
    Worker(app, url, codec=codec)
    Client(url, codec=codec)

Each payload has the id of its key in the clear, and is authenticated together with its database, with the instance or
session that it belongs to, and with its field: one that was altered, or moved to another row, is refused.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from cachetools import LRUCache

from affinity.errors import InvalidOptions, PayloadUnreadable
from affinity.field_words import show_all_in_help
from affinity.payloads.contract import PayloadContext, Reencryption

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = ["Encryption", "KeyService", "Reencryption"]

KEY_BYTES: Final = 32
KEYS_VARIABLE: Final = "AFFINITY_KEYS"
"""Environment variable with keys, ``ID=BASE64``, separated by spaces or commas; the last one writes."""

_KEY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
_NONCE: Final = 12
_VERSION: Final = 1
_OWN_KEY, _DATA_KEY = 0, 1
_MOST_ENCRYPTED: Final = 4096
"""Bytes of an encrypted data key."""
_FIXED: Final = 3
"""Bytes of the head before the id of the key."""
_CACHED: Final = 10_000
"""Keys of objects that are kept in memory."""


class KeyService(Protocol):
    """A service that keeps a key, such as a cloud's KMS, and encrypts data keys with it: envelope encryption.

    Each instance and each session gets a data key, which is stored encrypted with each of its payloads, and is kept in
    memory. An error of a call is retried as a failure of the database is.
    """

    @property
    def key_id(self) -> str:
        """Id of the key that encrypts now: letters, digits, ``-`` and ``_``, at most 32."""
        ...

    async def encrypt(self, data_key: bytes) -> bytes:
        """Return a data key of 32 bytes, encrypted; at most 4,096 bytes."""
        ...

    async def decrypt(self, key_id: str, encrypted: bytes) -> bytes:
        """Return the data key.

        Raises:
            PayloadUnreadable: the service has no such key, or refuses this text.
        """
        ...


class _ObjectKey(NamedTuple):
    """The key of one object's payloads, and the data key as it is stored."""

    cipher: AESGCM
    encrypted: bytes


class Encryption:
    """Encrypts payloads by AES-256-GCM. It implements `affinity.PayloadCodec`.

    From a key, a key for each instance and session is derived (HKDF-SHA256), so that no key is used for many payloads.

    Args:
        keys: keys of 32 bytes, by id: letters, digits, ``-`` and ``_``, at most 32. All of them read.
        write: id of the key that writes; by default the last one.
        service: encrypts data keys in place of ``keys``, which may still read.
        allow_plain: accept payloads that are stored in the clear, while a database is being encrypted. What is written
            is encrypted in any case.

    Raises:
        InvalidOptions: there is no key, one has not 32 bytes or a malformed id, or ``write`` names none; or
            ``cryptography`` is not installed.
    """

    def __init__(
        self,
        keys: Mapping[str, bytes] | None = None,
        *,
        write: str | None = None,
        service: KeyService | None = None,
        allow_plain: bool = False,
    ) -> None:
        self._keys = {key_id: _check_key(key_id, key) for key_id, key in (keys or {}).items()}
        if not self._keys and service is None:
            raise InvalidOptions("there is no key: give keys= or service=")
        if write is not None and service is not None:
            raise InvalidOptions("write= names one of keys=, and service= writes: give one of them")
        if write is not None and write not in self._keys:
            raise InvalidOptions(f"write={write!r} is none of the keys {', '.join(self._keys)}")
        self._write = write or next(reversed(self._keys), "")
        self._service = service
        self._allow_plain = allow_plain
        self._derived: LRUCache[tuple[str, str, str], _ObjectKey] = LRUCache(_CACHED)
        self._data_keys: LRUCache[tuple[str, str, str], _ObjectKey] = LRUCache(_CACHED)  # that write
        self._opened: LRUCache[tuple[str, bytes], _ObjectKey] = LRUCache(_CACHED)  # that were decrypted
        self._under_way: dict[object, asyncio.Future[_ObjectKey]] = {}
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise InvalidOptions(
                "encryption needs cryptography: pip install 'affinity-workflows[encryption]'"
            ) from error
        self._cipher: Callable[[bytes], AESGCM] = AESGCM

    @classmethod
    def from_files(cls, *paths: str | os.PathLike[str], allow_plain: bool = False) -> Self:
        """Return an encryption with a key from each file: 32 bytes, or their base64. The name of a file, without its
        extension, is the id of its key. The last one writes.

        Raises:
            InvalidOptions: a file cannot be read, or holds no key; or two have the same name.
        """
        keys: dict[str, bytes] = {}
        for path in map(Path, paths):
            try:
                raw = path.read_bytes()
            except OSError as error:
                raise InvalidOptions(f"the key {path.name} cannot be read: {error.strerror}") from error
            if path.stem in keys:
                raise InvalidOptions(f"two keys are named {path.stem!r}")
            keys[path.stem] = raw if len(raw) == KEY_BYTES else _from_base64(path.stem, raw.decode("ascii", "replace"))
        return cls(keys, allow_plain=allow_plain)

    @classmethod
    def from_environment(cls, variable: str = KEYS_VARIABLE, *, allow_plain: bool = False) -> Self:
        """Return an encryption with the keys of an environment variable: ``ID=BASE64``, separated by spaces or commas.
        The last one writes.

        Raises:
            InvalidOptions: the variable is not set, or malformed.
        """
        keys: dict[str, bytes] = {}
        for part in re.split(r"[\s,]+", os.environ.get(variable, "").strip()):
            key_id, separator, text = part.partition("=")
            if not separator:
                raise InvalidOptions(f"{variable} must be ID=BASE64, or several of them")
            if key_id in keys:
                raise InvalidOptions(f"{variable} has two keys {key_id!r}")
            keys[key_id] = _from_base64(key_id, text)
        return cls(keys, allow_plain=allow_plain)

    @property
    def label(self) -> str:
        """The id of the key that writes, as ``key ID``."""
        return f"key {self._service.key_id if self._service is not None else self._write}"

    @property
    def reads_plain(self) -> bool:
        """As given by ``allow_plain``."""
        return self._allow_plain

    async def encode(self, data: bytes, context: PayloadContext) -> bytes:
        """Return the encrypted bytes, with the id of the key."""
        if self._service is None:
            key_id, kind, key = self._write, _OWN_KEY, self._derive(self._write, context)
        else:
            key_id, kind = _check_id(self._service.key_id), _DATA_KEY
            key = await self._new_data_key(self._service, key_id, context)
        head = _head(kind, key_id, key.encrypted)
        nonce = secrets.token_bytes(_NONCE)
        return head + nonce + key.cipher.encrypt(nonce, data, _associated(head, context))

    async def decode(self, data: bytes, context: PayloadContext) -> bytes:
        """Return the decrypted bytes.

        Raises:
            PayloadUnreadable: the key is not given, or the payload was altered or moved.
        """
        kind, key_id, encrypted, size = _read_head(data)
        key = self._derive(key_id, context) if kind == _OWN_KEY else await self._open_data_key(key_id, encrypted)
        nonce, body = data[size : size + _NONCE], data[size + _NONCE :]
        from cryptography.exceptions import InvalidTag

        try:
            return key.cipher.decrypt(nonce, body, _associated(data[:size], context))
        except (InvalidTag, ValueError) as error:
            raise PayloadUnreadable(
                f"encrypted, key {key_id}: it was altered, or moved from another place, or the key is another one"
            ) from error

    def _derive(self, key_id: str, context: PayloadContext) -> _ObjectKey:
        """Return the key of an object's payloads that belongs to one of our keys."""
        place = key_id, context.database, context.scope
        found = self._derived.get(place)
        if found is not None:
            return found
        if key_id not in self._keys:
            raise PayloadUnreadable(f"encrypted, key {key_id}, which is not given")
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        hkdf = HKDF(SHA256(), KEY_BYTES, salt=None, info=_joined("affinity payloads", context.database, context.scope))
        found = self._derived[place] = _ObjectKey(self._cipher(hkdf.derive(self._keys[key_id])), b"")
        return found

    async def _new_data_key(self, service: KeyService, key_id: str, context: PayloadContext) -> _ObjectKey:
        place = key_id, context.database, context.scope

        async def make() -> _ObjectKey:
            data_key = secrets.token_bytes(KEY_BYTES)
            encrypted = await service.encrypt(data_key)
            if len(encrypted) > _MOST_ENCRYPTED:
                raise InvalidOptions("the key service has returned more than 4,096 bytes for a data key")
            found = self._data_keys[place] = self._opened[key_id, encrypted] = _ObjectKey(
                self._cipher(data_key), encrypted
            )
            return found

        return self._data_keys.get(place) or await self._once(("new", place), make)

    async def _open_data_key(self, key_id: str, encrypted: bytes) -> _ObjectKey:
        service = self._service
        if service is None:
            raise PayloadUnreadable(f"encrypted, key {key_id} of a key service, which is not given")

        async def read() -> _ObjectKey:
            data_key = await service.decrypt(key_id, encrypted)
            if len(data_key) != KEY_BYTES:
                raise PayloadUnreadable(f"encrypted, key {key_id}: its data key has not {KEY_BYTES} bytes")
            found = self._opened[key_id, encrypted] = _ObjectKey(self._cipher(data_key), encrypted)
            return found

        place = key_id, encrypted
        return self._opened.get(place) or await self._once(("open", place), read)

    async def _once(self, place: object, make: Callable[[], Awaitable[_ObjectKey]]) -> _ObjectKey:
        """Make a key by one call, also if several payloads wait for it. If the caller that makes it is cancelled, the
        next one makes it.
        """
        while (other := self._under_way.get(place)) is not None:
            try:
                return await asyncio.shield(other)
            except asyncio.CancelledError:
                if not other.cancelled():
                    raise
        waited = self._under_way[place] = asyncio.get_running_loop().create_future()
        try:
            made = await make()
        except asyncio.CancelledError:
            waited.cancel()
            raise
        except BaseException as error:
            waited.set_exception(error)
            waited.exception()  # no other caller may wait
            raise
        else:
            waited.set_result(made)
            return made
        finally:
            del self._under_way[place]


def _check_id(key_id: str) -> str:
    if not _KEY_ID.fullmatch(key_id):
        raise InvalidOptions(f"the id of a key has 1 to 32 letters, digits, - and _: {key_id!r:.80} has not")
    return key_id


def _check_key(key_id: str, key: bytes) -> bytes:
    _check_id(key_id)
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise InvalidOptions(f"key {key_id!r} must be {KEY_BYTES} bytes: `openssl rand -base64 32` makes one")
    return key


def _from_base64(key_id: str, text: str) -> bytes:
    try:
        return b64decode(text.strip(), validate=True)
    except ValueError:
        raise InvalidOptions(f"key {key_id!r} is no base64") from None


def _head(kind: int, key_id: str, encrypted: bytes) -> bytes:
    """What stands before the nonce: version, kind, id of the key, and the data key of a key service."""
    name = key_id.encode()
    head = bytes([_VERSION, kind, len(name)]) + name
    return head if kind == _OWN_KEY else head + len(encrypted).to_bytes(2, "big") + encrypted


def _read_head(data: bytes) -> tuple[int, str, bytes, int]:
    """Return the kind, the id of the key, the data key, and the size of the head."""
    if len(data) < _FIXED or data[0] != _VERSION or data[1] not in {_OWN_KEY, _DATA_KEY}:
        raise PayloadUnreadable("it was encrypted by a later version of affinity, or is damaged")
    size = _FIXED + data[2]
    key_id, encrypted = data[_FIXED:size].decode("ascii", "replace"), b""
    if data[1] == _DATA_KEY:
        begin = size + 2
        size = begin + int.from_bytes(data[size:begin], "big")
        encrypted = data[begin:size]
    if len(data) < size + _NONCE:
        raise PayloadUnreadable(f"encrypted, key {key_id:.32}: it is damaged")
    return data[1], key_id, encrypted, size


def _joined(*texts: str) -> bytes:
    return b"".join(len(data).to_bytes(4, "big") + data for data in (text.encode() for text in texts))


def _associated(head: bytes, context: PayloadContext) -> bytes:
    return head + _joined(*context)


show_all_in_help(globals())
