"""The streams of the command: what their encoding cannot print is escaped."""

from __future__ import annotations

import codecs
import io
import os
import sys
from contextlib import suppress
from typing import Final

ESCAPED: Final = "backslashreplace"


class _Ascii(io.TextIOWrapper):
    """A stream of ASCII. It has another name of UTF-8 as its encoding: click writes UTF-8 to a stream of ASCII, and to
    one of ``utf-8`` what has to be UTF-8, such as an export.
    """

    def __init__(self, stream: io.TextIOWrapper) -> None:
        super().__init__(stream.buffer, "utf8", line_buffering=stream.line_buffering)
        self._stream = stream  # it would close the buffer

    def write(self, text: str) -> int:
        super().write(text.encode("ascii", ESCAPED).decode("ascii"))
        return len(text)


def escape_output() -> None:
    """Escape characters that stdout or stderr cannot print, instead of raising UnicodeEncodeError."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):  # it is closed, or of a program that embeds the command
            continue
        if codecs.lookup(stream.encoding).name == "ascii":
            setattr(sys, name, _Ascii(stream))
        elif stream.errors != ESCAPED:
            with suppress(OSError):  # its file was replaced by one of another kind
                stream.reconfigure(errors=ESCAPED)


def is_terminal() -> bool:
    """Whether stdout is a terminal; a process may have been started without any stdout."""
    return sys.stdout is not None and sys.stdout.isatty()


def drop_output() -> None:
    """Write nothing more to stdout, whose reader has gone: what is left there would be an error at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
