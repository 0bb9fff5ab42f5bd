"""The check value of a database: a text that its workers have encoded. A codec that cannot decode it lacks the key that
writes now, and is refused before it reads or writes anything.

A worker whose codec writes with another key encodes the value again when it starts, and so does a re-encryption. So a
codec needs the key that wrote last, and a former key is not asked for: what it has encoded may be gone.
"""

from __future__ import annotations

from typing import Final

from affinity.errors import CodecFailed, CodecMismatch, PayloadUnreadable
from affinity.payloads.contract import PayloadCodec, PayloadContext, label_of
from affinity.payloads.frames import Frame, read_frame
from affinity.provider.contract import DatabaseIdentity, Provider

FIELD: Final = "check"
"""Of the context of the value; its scope is empty."""

_TEXT: Final = b"affinity"


async def check_keys(provider: Provider, codec: PayloadCodec, identity: DatabaseIdentity, *, keep: bool) -> None:
    """Check that a codec decodes the check value of a database.

    Args:
        provider: without a codec.
        codec: to check.
        identity: of the database.
        keep: mark the database as encoded, and encode the value anew if it has another label than that of the codec.

    Raises:
        CodecMismatch: the codec does not decode it.
        CodecFailed: the codec has failed.
    """
    while identity.check_value is not None or keep:
        if identity.check_value is not None:
            await _decode(codec, identity, identity.check_value)
            if not keep or read_frame(identity.check_value).label == label_of(codec):
                return
        new = await _encode(codec, identity)
        if await provider.mark_encoded(new, former=identity.check_value):
            return
        identity = await provider.read_identity()  # another worker was faster


async def _encode(codec: PayloadCodec, identity: DatabaseIdentity) -> str:
    label = label_of(codec)
    try:
        return Frame("", label, await codec.encode(_TEXT, _context(identity))).text
    except Exception as error:
        raise CodecFailed(f"the codec has failed: {type(error).__name__}: {error}") from error


async def _decode(codec: PayloadCodec, identity: DatabaseIdentity, stored: str) -> None:
    frame = read_frame(stored)
    try:
        found = await codec.decode(frame.body, _context(identity))
    except PayloadUnreadable as error:
        raise _mismatch(frame.label, str(error)) from error
    except Exception as error:
        raise CodecFailed(f"the codec has failed: {type(error).__name__}: {error}") from error
    if found != _TEXT:
        raise _mismatch(frame.label, "it decodes to something else")


def _context(identity: DatabaseIdentity) -> PayloadContext:
    return PayloadContext(identity.name, "", FIELD)


def _mismatch(label: str, problem: str) -> CodecMismatch:
    return CodecMismatch(
        f"this codec cannot read what the workers of this database write, with {label}: {problem}. Give it that key "
        "too, beside the key that writes. If that key is lost, see docs/run/encryption.md#a-lost-key"
    )
