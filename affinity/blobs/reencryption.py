"""Encodes stored payloads again with the key that writes now, beside running work.

A pass reads all columns of payloads in the order of their primary keys. A payload that has the label of the codec is
left alone, so a pass that was interrupted is begun again, and finds less to do. A payload is replaced only if it is
still stored as it was read: what work writes in between stays. Rows that are locked are tried again a few times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

import anyio

from affinity.blobs.store.contract import BlobProvider, PayloadChange, StoredPayload, StoredPayloads
from affinity.client.calls import retry
from affinity.errors import InvalidOptions, PayloadUnreadable, StatementTimeout
from affinity.payloads.contract import Reencryption
from affinity.payloads.frames import read_frame
from affinity.payloads.recoding import find_payloads, replace_payloads
from affinity.payloads.wrapping import CodedProvider

_ATTEMPTS: Final = 5
_PAUSE: Final = 0.2
"""Seconds before the next attempt on rows that were locked, or have changed."""


class _Recoded(NamedTuple):
    """What was found in the rows of one step."""

    found: Counter[str]
    changes: Sequence[PayloadChange]
    frames: Sequence[int]
    """Encoded payloads in each change."""
    unreadable: int
    in_the_clear: int
    blobs: int


class Pass:
    """One pass over all payloads of a database.

    Raises:
        InvalidOptions: the provider has no codec.
    """

    def __init__(self, provider: BlobProvider, *, dry_run: bool, progress: Callable[[int], None]) -> None:
        if not isinstance(provider, CodedProvider):
            raise InvalidOptions("there is no codec: give one, or name it in AFFINITY_CODEC")
        self._coded: CodedProvider = provider
        self._provider: BlobProvider = provider
        self.key: str = provider.label
        self._dry_run = dry_run
        self._progress = progress
        self._found: Counter[str] = Counter()
        self._reencrypted = self._unreadable = self._busy = self._in_the_clear = self._blobs = 0

    async def run(self, batch: int) -> Reencryption:
        """Look at all payloads, ``batch`` rows at a time."""
        place: str | None = None
        limit = batch
        while True:
            try:
                place = await self._step(place, limit)
            except StatementTimeout:
                if limit == 1:
                    raise
                limit = max(1, limit // 8)
                continue
            self._progress(self._reencrypted)
            if place is None:
                if not self._dry_run:
                    await retry(self._coded.keep_check_value)
                return self._outcome()
            limit = min(batch, 2 * limit)

    def _outcome(self) -> Reencryption:
        return Reencryption(
            key=self.key,
            found=dict(sorted(self._found.items())),
            reencrypted=self._reencrypted,
            unreadable=self._unreadable,
            busy=self._busy,
            in_the_clear=self._in_the_clear,
            blobs=self._blobs,
        )

    async def _step(self, place: str | None, limit: int) -> str | None:
        """Encode the payloads of some rows; return where the next ones begin."""
        step = await self._read(place, limit)
        recoded = first = await self._recode(step.payloads)
        for attempt in range(_ATTEMPTS):
            if attempt:
                await anyio.sleep(_PAUSE)
                step = await self._read(place, limit)
                recoded = await self._recode(step.payloads)
            done = await self._replace(recoded)
            self._reencrypted += done
            left = sum(recoded.frames) - done
            if not left:
                break
        self._found += first.found
        self._busy += left
        self._unreadable += recoded.unreadable
        self._in_the_clear += recoded.in_the_clear
        self._blobs += recoded.blobs
        return step.place

    async def _read(self, place: str | None, limit: int) -> StoredPayloads:
        return await retry(partial(self._provider.read_payloads, place, limit))

    async def _replace(self, recoded: _Recoded) -> int:
        if self._dry_run or not recoded.changes:
            return sum(recoded.frames)
        replaced = await retry(partial(self._provider.replace_payloads, recoded.changes))
        return sum(recoded.frames[place] for place in replaced)

    async def _recode(self, payloads: Sequence[StoredPayload]) -> _Recoded:
        found, changes, frames = Counter[str](), list[PayloadChange](), list[int]()
        unreadable = in_the_clear = blobs = 0
        for payload in payloads:
            here = find_payloads(payload.column, payload.stored)
            in_the_clear += here.in_the_clear
            new: dict[str | bytes, str | bytes] = {}
            for stored, field in here.frames.items():
                try:
                    frame = read_frame(stored)
                    in_the_clear += not frame.label
                    blobs += len(frame.named)
                    if not frame.label:
                        continue
                    found[frame.label] += 1
                    if frame.label != self.key:
                        new[stored] = await self._recoded(stored, field)
                except PayloadUnreadable:
                    unreadable += 1
            if new:
                changes.append(PayloadChange(payload, replace_payloads(payload.stored, new)))
                frames.append(len(new))
        return _Recoded(found, changes, frames, unreadable, in_the_clear, blobs)

    async def _recoded(self, stored: str | bytes, field: str) -> str | bytes:
        return stored if self._dry_run else await retry(partial(self._coded.recode, stored, field))
