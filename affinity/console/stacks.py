"""Stacks of errors for people: the frames of the application's code apart from those of libraries and of affinity."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_FRAME: Final = re.compile(r'^\s*(?:\| )*\s*File "(?P<path>[^"]*)", line \d+')
_HEAD: Final = re.compile(r"^\s*[+|]?\s*(?:Exception Group )?Traceback \(most recent call last\):")
_OTHERS: Final = re.compile(
    r"[/\\](?:site-packages|dist-packages|affinity)[/\\]|[/\\]lib(?:64)?[/\\]python\d|[/\\]Lib[/\\]|^<frozen "
)
"""Places of code that the application's authors have not written."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack as text."""

    own: str  # the frames of the application, in the order of the calls; empty: there are none
    whole: str
    folded: int  # frames that are only in ``whole``


def stack_of(text: str) -> Stack:
    """Return the parts of a traceback as Python prints it. Other text has no frames."""
    own, number, folded, is_own = list[str](), 0, 0, False
    for line in text.splitlines():
        frame = _FRAME.match(line)
        if frame is not None:
            number += 1
            is_own = _OTHERS.search(frame["path"]) is None
            folded += not is_own
        elif _HEAD.match(line) or not line.startswith((" ", "\t")):
            is_own = False
        if is_own:
            own.append(line)
    return Stack("\n".join(own), text, folded)
