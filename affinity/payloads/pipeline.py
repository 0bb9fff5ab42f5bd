"""The pipeline of payloads: encodes the arguments of a call of a provider, and decodes its results.

A call is walked twice. The first time collects its payloads, then the codec is called for each, and the second time
puts the outcomes in their places. So equal payloads of one call have one stored form, and the walk itself never waits.
"""

from __future__ import annotations

import asyncio
import math
import time
import zlib
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from cachetools import LRUCache

from affinity.blob import MARK, Blob, find_blobs
from affinity.errors import CodecFailed, InvalidOptions, PayloadUnreadable, ProviderError
from affinity.limits import MAX_STATE_BYTES
from affinity.orchestration.waits import RESERVED_PREFIX
from affinity.payloads import forms
from affinity.payloads.contract import PayloadCodec, PayloadContext, label_of
from affinity.payloads.frames import Frame, read_frame
from affinity.payloads.table import Encoded, payload_parts, plain_events
from affinity.payloads.vault import Vault
from affinity.payloads.walking import Visit, walk
from affinity.records import FRAME, UnreadableText

T = TypeVar("T")

_MARK: Final = MARK.encode()
_FRAME: Final = FRAME.encode()
_ZLIB: Final = b"\x78"

_KEPT_ANCESTORS: Final = 1024
"""Objects whose ancestors are remembered."""

SUSPECT_SECONDS: Final = 900.0
"""From so long on, a payload at which the codec fails each time, while it decodes others between, is unreadable: it
hurts what it belongs to, and not the whole worker. It is longer than a key service is usually away, since a codec that
keeps keys in memory decodes others meanwhile.
"""

_SILENCE: Final = 120.0
"""Seconds without a failure after which a payload is no longer a suspect."""

_KEPT_SUSPECTS: Final = 1024
_MOST_FAILURES: Final = 3
"""Payloads of one call at which the codec fails before the call does: a key service that is away may cost a timeout for
each.
"""


class _Payload(NamedTuple):
    """A payload to encode."""

    data: bytes
    field: str
    scope: str
    is_text: bool


class _Stored(NamedTuple):
    """A frame to decode, and where it was found."""

    frame: str | bytes
    field: str
    scope: str | None


class _Suspect(NamedTuple):
    """A payload at which the codec fails: since when, and when last."""

    since: float
    last: float


class StoredText(str):
    """A journal's entry, decoded, with its stored form: the database compares that with what a client sends."""

    __slots__ = ("stored",)

    stored: str

    @classmethod
    def of(cls, text: str, stored: str) -> StoredText:
        """Return a text that was stored in this form."""
        found = cls(text)
        found.stored = stored
        return found

    def fits(self, encoded: Encoded, scope: str | None) -> bool:
        """Return whether the stored form may be written for an object."""
        return encoded.form == "entry" and (encoded.keeps or forms.scope_of_entry(self.stored) == scope)


class KeptText(UnreadableText):
    """In place of a text that cannot be decoded, with its stored form: who writes it back changes nothing."""

    __slots__ = ("field", "scope", "stored")

    stored: Any
    field: str
    scope: str | None

    @classmethod
    def at(cls, error: PayloadUnreadable, stored: Any, field: str, scope: str | None) -> KeptText:
        """Return the text that stands for what is stored at a place."""
        text = cls(f"({error})")
        text.error, text.stored, text.field, text.scope = error, stored, field, scope
        return text

    def fits(self, encoded: Encoded, scope: str | None) -> bool:
        """Return whether it is written where it was read."""
        return encoded.field == self.field and scope == self.scope and scope is not None


class Pipeline:
    """The transformations of the payloads of one database.

    Args:
        codec: None: payloads that are encoded cannot be read.
        database: the name of the database, in the contexts of payloads.
        provider: without transformations; it tells what the database has copied. None: nothing was.
        vault: keeps large payloads. None: those that are in a blob store cannot be read.
        writes_plain: without a codec, payloads are written as they are, unless they are large. Otherwise none is.
    """

    def __init__(
        self,
        codec: PayloadCodec | None,
        database: str,
        provider: Any,
        *,
        vault: Vault | None = None,
        writes_plain: bool = False,
    ) -> None:
        self._codec = codec
        self._vault = vault
        self._writes_plain = writes_plain
        self._database = database
        self._provider = provider
        self._ancestors: dict[str, frozenset[str | None]] = {}
        self._suspects: LRUCache[_Stored, _Suspect] = LRUCache(_KEPT_SUSPECTS)
        self._decoded_at = -math.inf  # when the codec has last decoded one

    async def encode(self, value: Any) -> Any:
        """Return arguments of a call with their payloads encoded.

        Raises:
            CodecFailed: the codec has raised.
            InvalidOptions: there is no codec, and the value has a payload.
        """
        found: dict[_Payload, Any] = {}
        walk(value, None, _collecting(found))
        await self._for_each(found, self._encode_one)
        return walk(value, None, _replacing(found))

    async def decode(self, value: Any, scope: str | None = None) -> Any:
        """Return the result of a call with its payloads decoded. A text that cannot be is an `UnreadableText`.

        Args:
            value: the result.
            scope: the object that its payloads belong to, where its records do not say it.

        Raises:
            CodecFailed: the codec has raised anything but `PayloadUnreadable`.
            PayloadUnreadable: a state, in bytes, cannot be decoded.
        """
        return await self._decode([(value, scope)], lambda values: values[0])

    async def decode_each(self, values: Collection[Any], scopes: Collection[str | None]) -> list[Any]:
        """Return the elements of a result as `decode` returns one; each has a scope."""
        found: list[Any] = await self._decode([*zip(values, scopes, strict=True)], lambda values: values)
        return found

    async def encode_value(self, encoded: Encoded, value: Any, scope: str) -> Any:
        """Return one payload encoded, as a field of a record is."""
        found: dict[_Payload, Any] = {}
        _collecting(found)(encoded, value, scope)
        await self._for_each(found, self._encode_one)
        return _replacing(found)(encoded, value, scope)

    async def decode_value(self, encoded: Encoded, value: Any, scope: str) -> Any:
        """Return one payload decoded, as a field of a record is."""
        found: dict[_Stored, bytes | PayloadUnreadable] = {}
        self._finding(found)(encoded, value, scope)
        await self._decode_all(found)
        return self._restoring(found)(encoded, value, scope)

    @property
    def codec(self) -> PayloadCodec | None:
        """None: there is none."""
        return self._codec

    @property
    def label(self) -> str:
        """Label of the codec.

        Raises:
            InvalidOptions: there is none.
        """
        if self._codec is None:
            raise InvalidOptions("there is no codec: give one, or name it in AFFINITY_CODEC")
        return label_of(self._codec)

    async def recode(self, stored: str | bytes, field: str) -> str | bytes:
        """Return an encoded payload as the codec encodes it now, for the object that it was written for.

        Raises:
            PayloadUnreadable: it cannot be decoded.
            CodecFailed, BlobStoreFailed: the codec, or the blob store, fails.
        """
        frame = read_frame(stored)
        data = await self._decode_one(_Stored(stored, field, None))
        if isinstance(data, PayloadUnreadable):
            raise data
        label, body = await self._encoded(_Payload(data, field, frame.scope, isinstance(stored, str)))
        new = Frame(frame.scope, label, body, named=frame.named)
        if frame.reference and self._vault is not None:
            new = new._replace(body=b"", reference=await self._vault.offload(body))
        return new.text if isinstance(stored, str) else new.data

    async def _for_each(self, found: dict[T, Any], transform: Callable[[T], Awaitable[Any]]) -> None:
        """Put what each key becomes beside it; side by side, if a blob store may be waited for."""
        if self._vault is None or len(found) == 1:
            for key in found:
                found[key] = await transform(key)
        else:
            found.update(zip(found, await asyncio.gather(*map(transform, found)), strict=True))

    async def _encode_one(self, payload: _Payload) -> str | bytes | None:
        """Return the frame of a payload; None: it is stored as it is."""
        if self._codec is None and not self._writes_plain:
            raise InvalidOptions(
                "the payloads of this database are encoded: give a codec, or name it in AFFINITY_CODEC"
            )
        named: tuple[str, ...] = ()
        if self._vault is not None and (blobs := blobs_in(payload.data)):
            named = tuple(sorted(map(str, blobs)))
            await self._vault.use([blob.digest for blob in blobs])
        label, body = await self._encoded(payload)
        frame = Frame(payload.scope, label, body, named=named)
        if self._vault is not None and self._vault.is_large(payload.data if self._codec is None else body):
            frame = frame._replace(body=b"", reference=await self._vault.offload(body))
        elif self._codec is None and not _must_be_framed(payload, named):
            return None
        return frame.text if payload.is_text else frame.data

    async def _encoded(self, payload: _Payload) -> tuple[str, bytes]:
        """Return the codec's label and the encoded bytes."""
        if self._codec is None:
            return "", payload.data
        label = label_of(self._codec)
        context = PayloadContext(self._database, payload.scope, payload.field)
        try:
            return label, await self._codec.encode(payload.data, context)
        except Exception as error:
            raise CodecFailed(f"the codec has failed: {type(error).__name__}: {error}") from error

    async def _decode(self, values: list[tuple[Any, str | None]], unpack: Any) -> Any:
        found: dict[_Stored, bytes | PayloadUnreadable] = {}
        for value, scope in values:
            walk(value, scope, self._finding(found))
        await self._decode_all(found)
        return unpack([walk(value, scope, self._restoring(found)) for value, scope in values])

    async def _decode_all(self, found: dict[_Stored, bytes | PayloadUnreadable]) -> None:
        """Put what each payload is beside it; those at which the codec has failed before come last.

        Raises:
            CodecFailed: the codec fails at one, and the time has not come to say that this is unreadable.
        """
        failures: list[CodecFailed] = []

        async def decode_one(stored: _Stored) -> bytes | PayloadUnreadable:
            if len(failures) >= _MOST_FAILURES:
                return b""
            try:
                return await self._decode_one(stored)
            except CodecFailed as error:
                failures.append(error)
                return b""

        if self._suspects:
            found.update({key: found.pop(key) for key in [each for each in found if each in self._suspects]})
        await self._for_each(found, decode_one)
        if failures:
            raise failures[0]

    def _judge(self, stored: _Stored, error: Exception) -> PayloadUnreadable:
        """Return the error of a payload at which the codec fails for too long.

        Raises:
            CodecFailed: not yet, or it fails at all of them.
        """
        text = f"the codec has failed: {type(error).__name__}: {error}"
        now = time.monotonic()
        known = self._suspects.get(stored)
        if known is None or now - known.last > _SILENCE:
            known = _Suspect(now, now)
        self._suspects[stored] = known._replace(last=now)
        if now - known.since < SUSPECT_SECONDS or self._decoded_at <= known.last:
            raise CodecFailed(text) from error
        return PayloadUnreadable(f"{text}; it decodes others")

    async def _decode_one(self, stored: _Stored) -> bytes | PayloadUnreadable:
        try:
            return await self._decode_frame(stored)
        except PayloadUnreadable as error:
            return error
        except ProviderError:
            raise
        except Exception as error:
            return self._judge(stored, error)

    async def _decode_frame(self, stored: _Stored) -> bytes:
        frame = read_frame(stored.frame)
        if not frame.label:
            if self._codec is not None and not self._codec.reads_plain:
                raise PayloadUnreadable("it is stored in the clear, which its codec does not accept")
            return await self._body_of(frame)
        if self._codec is None:
            raise PayloadUnreadable(f"encrypted, {frame.label}")
        if stored.scope not in {None, frame.scope} and not await self._is_copied(stored.scope, frame.scope):
            raise PayloadUnreadable(f"it was written for {frame.scope!r}, and found at {stored.scope!r}")
        context = PayloadContext(self._database, frame.scope, stored.field)
        decoded = await self._codec.decode(await self._body_of(frame), context)
        self._decoded_at = time.monotonic()
        self._suspects.pop(stored, None)
        return decoded

    async def _body_of(self, frame: Frame) -> bytes:
        if not frame.reference:
            return frame.body
        if self._vault is None:
            raise PayloadUnreadable("it is in a blob store, and none is given")
        return await self._vault.fetch(frame.reference)

    async def _is_copied(self, scope: str | None, written_for: str) -> bool:
        """Whether the database may have copied a payload from one object to the other one."""
        if scope is None:
            return True
        if self._provider is None:
            return False
        known = self._ancestors.get(scope, frozenset())
        if written_for not in known and None not in known:
            for part in payload_parts():
                if part.ancestors is not None:
                    known |= frozenset(await part.ancestors(self._provider, scope))
            if len(self._ancestors) >= _KEPT_ANCESTORS:
                self._ancestors.clear()
            self._ancestors[scope] = known
        return written_for in known or None in known

    def _accept_plain(self, event: str | None) -> None:
        if is_always_plain(event):
            return
        if self._codec is not None and not self._codec.reads_plain:
            raise PayloadUnreadable("it is stored in the clear, which its codec does not accept")

    def _finding(self, found: dict[_Stored, bytes | PayloadUnreadable]) -> Visit:
        def visit(encoded: Encoded, value: Any, scope: str | None) -> Any:
            def get(frame: str | bytes, field: str) -> bytes:
                found[_Stored(frame, field, scope)] = b""
                return b"null"

            with suppress(PayloadUnreadable):  # the second time says so
                forms.decode(encoded.form, value, encoded.field, get, self._accept_plain)
            return value

        return visit

    def _restoring(self, found: dict[_Stored, bytes | PayloadUnreadable]) -> Visit:
        def visit(encoded: Encoded, value: Any, scope: str | None) -> Any:
            def get(frame: str | bytes, field: str) -> bytes:
                outcome = found[_Stored(frame, field, scope)]
                if isinstance(outcome, PayloadUnreadable):
                    raise outcome
                return outcome

            try:
                new = forms.decode(encoded.form, value, encoded.field, get, self._accept_plain)
                return StoredText.of(new, value) if encoded.form == "entry" and new is not value else new
            except PayloadUnreadable as error:
                if encoded.form == "bytes":
                    raise
                if encoded.form == "details":
                    return {"details": f"({error})"}
                return KeptText.at(error, value, encoded.field, scope)

        return visit


def is_always_plain(event: str | None) -> bool:
    """Return whether the data of an event of this name is a guest's own, and is never encoded."""
    return event is not None and (event.startswith(RESERVED_PREFIX) or event in plain_events())


def _collecting(found: dict[_Payload, Any]) -> Visit:
    def visit(encoded: Encoded, value: Any, scope: str | None) -> Any:
        if isinstance(value, StoredText | KeptText) and value.fits(encoded, scope):
            return value

        def put(data: bytes, field: str) -> str:
            found[_Payload(data, field, scope or "", encoded.form != "bytes")] = None
            return ""

        forms.encode(encoded.form, value, encoded.field, put)
        return value

    return visit


def _replacing(found: dict[_Payload, Any]) -> Visit:
    def visit(encoded: Encoded, value: Any, scope: str | None) -> Any:
        if isinstance(value, StoredText | KeptText) and value.fits(encoded, scope):
            return value.stored

        is_new = False

        def put(data: bytes, field: str) -> Any:
            nonlocal is_new
            frame = found[_Payload(data, field, scope or "", encoded.form != "bytes")]
            is_new = is_new or frame is not None
            return frame

        new = forms.encode(encoded.form, value, encoded.field, put)
        return new if is_new else value  # not even with other spaces

    return visit


def blobs_in(data: bytes) -> set[Blob]:
    """Return the blobs that a payload names; also one that is compressed, as a large state is."""
    if _MARK not in data and data[:1] == _ZLIB:
        with suppress(zlib.error):
            data = zlib.decompressobj().decompress(data, MAX_STATE_BYTES)
    return find_blobs(data.decode("utf-8", "replace")) if _MARK in data else set()


def _must_be_framed(payload: _Payload, named: Collection[str]) -> bool:
    """Whether a payload that no codec encodes has a frame: it would be taken for one, or hides what it names."""
    return _FRAME in payload.data or (not payload.is_text and bool(named))
