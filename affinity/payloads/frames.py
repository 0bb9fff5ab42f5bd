"""The stored form of an encoded payload: a prefix, a header in the clear, and the bytes of the codec.

The header says for which object the payload was written, and the codec's label. It has no dot, nor has the encoded
body of a text. So a frame in a JSON text is a string without escapes.

A header may have a third field. ``blob``: the body is in a blob store, and its reference is here in its place.
``named``: there is a part more, before the bytes or behind the text, with the blobs that the payload names: behind the
codec they could not be found, and would be deleted.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Final, NamedTuple, TypeGuard

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from affinity.errors import PayloadUnreadable
from affinity.records import FRAME

_FRAME_BYTES: Final = FRAME.encode()
_BLOB: Final = "blob"
_NAMED: Final = "named"
_HEADER: Final = TypeAdapter(tuple[str, str])


class Frame(NamedTuple):
    """An encoded payload as it is stored."""

    scope: str
    label: str
    """Of the codec. Empty: none has encoded the body."""
    body: bytes
    reference: str = ""
    """To the body in the blob store; then there is none here."""
    named: tuple[str, ...] = ()
    """References to the blobs that the payload names."""

    @property
    def text(self) -> str:
        """The frame in a text column, or in a string of a JSON text."""
        head = f"{FRAME}{b64encode(self._header).decode()}."
        if self.reference:
            return head + ",".join((self.reference, *self.named))
        text = head + b64encode(self.body).decode()
        return f"{text}.{','.join(self.named)}" if self.named else text

    @property
    def data(self) -> bytes:
        """The frame in a column of bytes."""
        head = b"%b%b." % (_FRAME_BYTES, b64encode(self._header))
        if self.reference:
            return head + ",".join((self.reference, *self.named)).encode()
        return b"%b%b.%b" % (head, ",".join(self.named).encode(), self.body) if self.named else head + self.body

    @property
    def _header(self) -> bytes:
        kind = [_BLOB] if self.reference else [_NAMED] if self.named else []
        return to_json([self.scope, self.label, *kind])


def is_frame(stored: object) -> TypeGuard[str | bytes]:
    """Return whether a stored value is a frame, as text or as bytes."""
    if isinstance(stored, str):
        return stored.startswith(FRAME)
    return isinstance(stored, bytes) and stored.startswith(_FRAME_BYTES)


def read_frame(stored: str | bytes) -> Frame:
    """Return the parts of a frame.

    Raises:
        PayloadUnreadable: it is damaged.
    """
    try:
        if isinstance(stored, str):
            head, rest = stored[len(FRAME) :].split(".", 1)
            return _read_text(*_read_head(head), rest)
        raw, _, data = stored[len(_FRAME_BYTES) :].partition(b".")
        return _read_bytes(*_read_head(raw.decode("ascii")), data)
    except (ValueError, TypeError) as error:
        raise PayloadUnreadable("the stored form of an encoded payload is damaged") from error


def _read_head(text: str) -> tuple[str, str, str]:
    scope, label, *kinds = from_json(b64decode(text, validate=True))
    kind = kinds[0] if kinds else ""
    if not isinstance(scope, str) or not isinstance(label, str) or kind not in {"", _BLOB, _NAMED} or len(kinds) > 1:
        raise TypeError("a header holds two texts, and a word")
    return scope, label, kind


def _read_text(scope: str, label: str, kind: str, rest: str) -> Frame:
    if kind == _BLOB:
        reference, *named = rest.split(",")
        return Frame(scope, label, b"", reference, tuple(named))
    body, *others = rest.split(".")
    if len(others) != (kind == _NAMED):
        raise ValueError("a part too much, or too few")
    return Frame(scope, label, b64decode(body, validate=True), "", tuple(others[0].split(",")) if others else ())


def _read_bytes(scope: str, label: str, kind: str, data: bytes) -> Frame:
    if kind == _BLOB:
        reference, *named = data.decode("ascii").split(",")
        return Frame(scope, label, b"", reference, tuple(named))
    if kind == _NAMED:
        names, _, data = data.partition(b".")
        return Frame(scope, label, data, "", tuple(names.decode("ascii").split(",")))
    return Frame(scope, label, data)
