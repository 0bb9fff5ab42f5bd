"""What an application gives to encode payloads: a codec, and the context of each payload."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol, runtime_checkable

from affinity.errors import CodecFailed
from affinity.records import frozen

_LABEL: Final = re.compile(r"[^.\x00-\x1f\x7f]{1,64}")


class PayloadContext(NamedTuple):
    """The place that a payload was written for. A codec that authenticates it refuses a payload that was moved."""

    database: str
    """Random name of the database: it survives a restore and a failover."""
    scope: str
    """Id of the instance, session or other object that the payload belongs to."""
    field: str
    """Kind of the payload: ``event.input``, ``state``, ``entry`` and others."""


@runtime_checkable
class PayloadCodec(Protocol):
    """Transforms the bytes of payloads before they are stored, and back.

    Its calls are made from one event loop, many at the same time. What `decode` gets is what `encode` has returned for
    the same context, unless someone has changed the database.
    """

    @property
    def label(self) -> str:
        """Names the way in which it encodes now, such as ``key 7``. It is stored with each payload, and is no secret;
        1 to 64 characters without dots and control characters.
        """
        ...

    @property
    def reads_plain(self) -> bool:
        """Whether a payload that is stored as plain text is accepted, as while a database is being encoded."""
        ...

    async def encode(self, data: bytes, context: PayloadContext) -> bytes:
        """Return the bytes to store. An error is retried as a failure of the database is."""
        ...

    async def decode(self, data: bytes, context: PayloadContext) -> bytes:
        """Return the bytes that were encoded.

        Raises:
            PayloadUnreadable: the bytes are at fault, or were encoded with a key that is not given. Other errors, as
                those of a key service that does not answer, are retried.
        """
        ...


@frozen(kw_only=True)
class Reencryption:
    """Outcome of `Client.reencrypt`. Numbers of payloads; one row may have several."""

    key: str  # label of the codec, which writes
    found: Mapping[str, int]  # encoded payloads before the pass, by label
    reencrypted: int  # now have the label of the codec; dry_run: would have
    unreadable: int  # left: no key of the codec decodes them, or they were altered
    busy: int  # left: other work held them, or changed them; the next pass tries again
    in_the_clear: int  # left: they were written without a codec
    blobs: int  # references to data of `affinity.Blob`, which keeps its key


def label_of(codec: PayloadCodec) -> str:
    """Return the label that is stored with what a codec encodes.

    Raises:
        CodecFailed: it is none. An empty one would say that nothing is encoded.
    """
    label = codec.label
    if not isinstance(label, str) or not _LABEL.fullmatch(label):
        raise CodecFailed(
            f"the label of a codec has 1 to 64 characters without dots and control characters: {label!r:.80}"
        )
    return label
