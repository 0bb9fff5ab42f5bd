"""Bounds as people write and read them: ``600/60s``, ``none``, "600 in 60 s"."""

from __future__ import annotations

import re
from typing import Final

from affinity.errors import InvalidLimit
from affinity.flow.limit import Rate
from affinity.flow.store.contract import RateBound

NONE: Final = "none"
"""Stands for a bound that does not exist."""

_PER: Final = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)/(\d{1,9}(?:\.\d{1,9})?)?(s|min|m|h|d|w)", re.ASCII)
_UNITS: Final = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}


def parse_slots(text: str) -> int | None:
    """Return a number of slots; None: no bound.

    Raises:
        InvalidLimit: it is anything else than a number from 0, or `NONE`.
    """
    if text == NONE:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10):  # noqa: PLR2004 -- digits
        raise InvalidLimit(f"{text!r:.80} is neither a number from 0 nor `none`")
    return int(text)


def parse_rate(text: str) -> Rate | None:
    """Return a rate, as ``600/60s``; None: no bound.

    Raises:
        InvalidLimit: it is anything else, or `NONE`.
    """
    if text == NONE:
        return None
    count, per = _parse_per(text)
    if count != int(count):
        raise InvalidLimit(f"{text!r}: a rate is a whole number in a time, as {count * 60:g}/60s")
    return Rate(int(count), per=per)


def parse_ramp(text: str) -> float:
    """Return slots for each second, of ``10/s`` or ``30/min``.

    Raises:
        InvalidLimit: it is anything else.
    """
    count, per = _parse_per(text)
    return count / per


def _parse_per(text: str) -> tuple[float, float]:
    """Return a number, and the seconds to which it belongs."""
    found = _PER.fullmatch(text)
    if found is None or not (per := float(found[2] or 1) * _UNITS[found[3]]):
        raise InvalidLimit(f"{text!r:.80} is not a number in a time; give 600/60s, 10/s, or 200000/1d")
    return float(found[1]), per


def rate_text(rate: Rate | RateBound) -> str:
    """Return a rate for people, as "600 in 60 s"."""
    bound = rate._bound if isinstance(rate, Rate) else rate
    even = ", evenly spaced" if bound.burst == 1 else f", {bound.burst} at once" if bound.burst is not None else ""
    return f"{bound.count} in {bound.per:g} s{even}"
