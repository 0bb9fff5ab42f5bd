"""The state of a conversation in the attempts of a wake: each change counts once, whichever attempt has made it.

An attempt begins with the state from before the wake, and makes its changes again. Changes that it does not make again,
because an earlier attempt has committed them, are put in place: at each step, section and `Wake.commit` that it meets
again, this is the state that was committed there. So a commit keeps its state in a row of the journal (`journal.Step`),
which the end of the wake removes. Only `Wake.commit` and the end of the wake write the session's record. The first such
commit keeps the state from before the wake too.

A later wake with the inputs of a wake that has failed or was cancelled begins with the record, and makes the changes
for its inputs itself. It takes over the other changes that sections of the other wake have made. Changes that no code
meets again are added at the end of the wake, or when the inputs are set aside.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic_core import to_json

from affinity.conversation.journal import Step
from affinity.conversation.run_rows import OF_RUN
from affinity.conversation.step_keys import step_key
from affinity.errors import InvalidInput, PayloadTooLarge
from affinity.limits import MAX_BATCH_BYTES
from affinity.records import SessionState, parse_stored
from affinity.session import OpenSession
from affinity.session.opening import snapshots_of
from affinity.session.snapshots import Snapshots
from affinity.session.state import DumpedState

_PREFIX: Final = '["state",'
"""Beginning of the keys of these rows."""

_BASE: Final = step_key("state", "base")
"""The state from before the wake, if `Wake.commit` has written the record since."""

_COMMIT: Final = step_key("state", "commit")
"""The last `Wake.commit` that has written the record, which has its state."""


_STEP: Final = '["state","step",'


def is_kept(step: Step) -> bool:
    """Return whether a row has a state, and no result of a step."""
    return step.key.startswith(_PREFIX)


def is_of_step(row: Step) -> bool:
    """Return whether a row belongs to a step that has begun or is done, or has the state of such a step."""
    return row.key.startswith(('["begun",', '["step",', '["token",', _STEP))


class Kept(NamedTuple):
    """A state that was committed."""

    wake_id: str
    key: str
    at: int
    """Orders the commits of all attempts."""
    plain: Any
    labels: Mapping[str, str]
    number: int
    """The place of a `Wake.commit` among those of its attempt."""


class KeptState:
    """The states that earlier attempts have committed, and the rows for what this attempt commits."""

    def __init__(self, session_id: str, wake_id: str, steps: Iterable[Step]) -> None:
        """``steps``: all rows of the journal."""
        self._session_id, self._wake_id = session_id, wake_id
        self._rows = [row for row in steps if is_kept(row)]
        self._kept: list[Kept] = []
        self._snapshots: Snapshots[Any] | None = None
        self._base: Any = None
        self._has_base = False
        self._at = 0  # the commit whose state is in place
        self._last = 0
        self._commits = 0
        self._sections: Counter[str] = Counter()
        self._size = 0
        self._has_looked = False  # the handler has read the commits of earlier attempts
        self._has_taken = False  # since its last commit it has appended entries that are committed

    async def begin(self, opening: OpenSession[Any]) -> None:
        """Put the state from before the wake in place."""
        self._snapshots = snapshots_of(opening)
        if not self._rows:
            return
        self._base = record = self._open.plain()
        found = sorted([await self._read(row, record) for row in self._rows], key=lambda item: item.at)
        self._last = found[-1].at
        for kept in found:
            if self._is_own(kept) and kept.key == _BASE:
                self._has_base, self._base = True, kept.plain
                self._open.put(kept.plain, {})
            elif self._is_own(kept) or kept.key not in {_BASE, _COMMIT}:
                self._kept.append(kept)
            else:
                self._at = kept.at  # the record has it

    async def _read(self, row: Step, record: Any) -> Kept:
        fields = parse_stored(row.result or "{}")
        plain = await self._open.plain_of(self._state_of(fields)) if "state" in fields else record
        return Kept(row.wake_id, row.key, fields["at"], plain, fields.get("labels", {}), fields.get("number", 0))

    @property
    def _open(self) -> Snapshots[Any]:
        assert self._snapshots is not None
        return self._snapshots

    # -- steps, sections and commits that are met again

    def meet_step(self, step: Step) -> None:
        """Put the state of a step in place that an earlier attempt has done."""
        is_of_run = step.wake_id == OF_RUN  # its row outlives the wake that has the state
        self._meet([k for k in self._kept if k.key == _key_of(step) and (is_of_run or k.wake_id == step.wake_id)])

    def begin_section(self, name: str) -> tuple[str, bytes | None]:
        """Put the state of the last commit of a section in place, which begins. Return its key, and the digest of the
        state that need not be saved; None: the state has to be saved.
        """
        self._sections[name] += 1
        key = step_key("state", "section", name, self._sections[name])
        found = [kept for kept in self._kept if kept.key == key]
        own = [kept for kept in found if self._is_own(kept)]
        self._meet(own or found)
        if own:
            return key, self.digest()
        return key, None if self._has_base or found else self._open.recorded_digest

    def _meet(self, found: Sequence[Kept]) -> None:
        for kept in found[-1:]:
            if kept.at <= self._at:  # the state has it
                continue
            self._at = kept.at
            if self._is_own(kept):
                self._open.put(kept.plain, kept.labels)
            else:
                self._open.merge(self._base, kept.plain, kept.labels)

    def _is_own(self, kept: Kept) -> bool:
        return kept.wake_id == self._wake_id

    def meet_commit(self, *, has_additions: bool) -> bool:
        """Return whether an earlier attempt has made this call of `Wake.commit`. The state of the last such commit is
        put in place.
        """
        self._commits += 1
        has_taken, self._has_taken = self._has_taken, False
        kept = next((row for row in self._kept if row.key == _COMMIT and self._is_own(row)), None)
        if kept is None or has_additions or self._at > kept.at:
            return False
        if not (has_taken if self._has_looked else self._commits <= kept.number):
            return False
        if self._has_looked or self._commits == kept.number:
            self._at = kept.at
            self._open.put(kept.plain, {})
        return True

    def note_taken(self) -> None:
        """Note that the handler appends an entry that an earlier attempt has committed."""
        self._has_taken = True

    def look(self) -> None:
        """Put the state of earlier attempts in place, because the handler reads their entries."""
        if self._snapshots is not None:
            self._has_looked = True
            self.add_rest()

    def add_rest(self) -> None:
        """Add the state that was committed last, if nothing was met again that has it."""
        last = [row for row in self._kept if self._is_own(row) or not row.key.startswith(_STEP)][-1:]
        for kept in last:
            if kept.at > self._at:
                self._at = kept.at
                self._open.merge(self._base, kept.plain, kept.labels)

    # -- rows to commit

    async def commit_rows(self) -> list[Step]:
        """Return the rows of a `Wake.commit` that writes the record: the state from before the wake, unless a row has
        it.
        """
        rows = [] if self._has_base else [self._row(_BASE, await self._open.recorded())]
        self._has_base = True
        return [*rows, self._row(_COMMIT, number=self._commits)]

    def is_recorded(self) -> bool:
        """Return whether the record has the state as it is now."""
        known = self._open.recorded_digest
        return known is not None and known == self.digest()

    def digest(self) -> bytes | None:
        """Return the digest of the state as it is now; None: it has no encoded form now."""
        try:
            return self._open.digest()
        except InvalidInput:
            return None

    async def section_row(self, key: str, dumped: DumpedState, known: bytes | None) -> tuple[Step | None, bytes | None]:
        """Return the row of a section with a state, and its digest. No row if it has this digest already."""
        encoded = await self._open.take(dumped, known)
        return (None, known) if encoded is None else (self._row(key, encoded.new), encoded.digest)

    async def step_rows(self, step: Step, before: bytes | None) -> Sequence[Step]:
        """Return the row with the state of a step that is done; empty if the state still has this digest.

        Raises:
            NotSerializable: the step has left the state without an encoded form.
            PayloadTooLarge: the states of the steps are larger than they may be.
        """
        if before is None and self.digest() is None:
            return ()
        encoded = await self._open.take(self._open.dump(), before)
        if encoded is None:
            return ()
        row = self._row(_key_of(step), encoded.new)
        self._size += len(row.result or "")
        if self._size > MAX_BATCH_BYTES // 2:
            raise PayloadTooLarge(
                f"the steps of the wake have changed a state of {len(encoded.new.state)} bytes, and keep {self._size} "
                f"bytes of it, over the limit of {MAX_BATCH_BYTES // 2}: change a large state behind the steps"
            )
        return [row]

    def dump(self) -> DumpedState:
        """Return the state as it is now."""
        return self._open.dump()

    @property
    def snapshots(self) -> Snapshots[Any]:
        """The snapshots of the open state."""
        return self._open

    def _row(self, key: str, state: SessionState | None = None, **more: int) -> Step:
        self._at = self._last = self._last + 1
        fields = {"at": self._at, **more} | ({} if state is None else _fields_of(state))
        return Step(self._wake_id, key, result=to_json(fields).decode())

    def _state_of(self, fields: Mapping[str, Any]) -> SessionState:
        encoding, text = fields.get("encoding"), fields["state"]
        return SessionState(
            session_id=self._session_id,
            state=text.encode() if encoding is None else base64.b64decode(text),
            encoding=encoding or "plain",
            schema_version=fields["version"],
        )


def _key_of(step: Step) -> str:
    return step_key("state", "step", step.key)


def _fields_of(state: SessionState) -> dict[str, Any]:
    about = {"version": state.schema_version, "labels": dict(state.metadata.labels)}
    try:
        if state.encoding == "plain":
            return {**about, "state": bytes(state.state).decode()}
    except UnicodeDecodeError:
        pass
    return {**about, "state": base64.b64encode(state.state).decode(), "encoding": state.encoding}


async def put_last(opening: OpenSession[Any], session_id: str, steps: Iterable[Step]) -> None:
    """Put the last state in place that wakes without success have committed."""
    kept = KeptState(session_id, "", steps)
    await kept.begin(opening)
    kept.add_rest()
