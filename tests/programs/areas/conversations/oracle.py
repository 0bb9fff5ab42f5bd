"""The oracle: what must hold of a conversation at rest, whatever was done to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from affinity.conversation import (
    AgentMessage,
    CallEnded,
    CallStarted,
    ChildDelegated,
    ChildEnded,
    ConfirmationAnswer,
    CustomToolUse,
    DeadLetters,
    JournalEvent,
    RunEnded,
    RunStarted,
    ToolConfirmation,
)
from affinity.conversation.journal import Entry
from tests.programs.areas.conversations.clients import Export
from tests.programs.areas.conversations.handler import (
    LIMITS,
    Broken,
    Chat,
    Kept,
    Noted,
    Refused,
    Script,
    Seen,
    end_of_run,
    expired_source,
    id_of_run,
    may_fail,
    perform,
    talk_id,
)
from tests.programs.areas.conversations.journal import Attempt, Journal, fields, read
from tests.programs.calls import NOT_CALLED

ERRORS = ("OSError", "Broken")
"""Errors that the steps raise."""

ASKING = ("agent.tool_confirmation", "agent.custom_tool_use")
ANSWERS = ("user.tool_confirmation", "user.custom_tool_result")


@dataclass(eq=False)
class Revisit:
    """A revisit that was requested."""

    steps: list[Any]
    dropped_at: int | None = None
    """Number of the interrupt that has dropped it."""


@dataclass(frozen=True)
class Result:
    """Of a wake."""

    value: Any
    processed: int
    may_end: bool
    """Delegations to this conversation may have ended with it: no child of its own was at work."""


@dataclass(eq=False)
class Folded:
    """The conversation according to its journal."""

    mark: int
    """The number up to which all inputs are processed."""
    chat: Chat | None
    """The state; None: it is not known."""
    requests: dict[str, int] = field(default_factory=dict)
    """The pending ones, each with the number of its entry."""
    cleared: dict[str, int] = field(default_factory=dict)
    """Requests that an interrupt has cleared, each with the number of the interrupt."""
    resolved: set[str] = field(default_factory=set)
    answered: dict[str, int] = field(default_factory=dict)
    """Requests that a client has answered, each with the number of the answer."""
    unsure: set[str] = field(default_factory=set)
    """Requests that an interrupt may have dropped which retention has removed, or an end of an ancestor."""
    revisits: dict[str, Revisit] = field(default_factory=dict)
    delegations: dict[str, str] = field(default_factory=dict)
    """The children by the ids of the delegations that have not ended."""
    ended: dict[str, ChildEnded] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)
    """What its wakes have started and has not ended, by the id: the number that it was given."""
    ended_runs: set[str] = field(default_factory=set)
    has_lost_run: bool = False
    """An interrupt that was set aside has ended the run over several wakes that the state names."""
    made: dict[str, str] = field(default_factory=dict)
    """How its wakes have made other conversations, by the ids of these."""
    made_again: set[str] = field(default_factory=set)
    """Those that another wake had made before."""
    results: list[Result] = field(default_factory=list)
    """Results that its wakes may have given to a parent."""


class Fold:
    """Goes through a journal, in order, and checks each entry against the earlier ones."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.knows_all = journal.is_whole
        lineage = journal.own.lineage
        inherited = [each for each in journal.entries if each.seq <= journal.inherited]
        kept = [event.chat for each in inherited if not each.is_copied and isinstance(event := read(each), Kept)]
        is_imported = any(each.lineage == "import" for each in journal.lineage)  # maybe a state without entries
        is_known = self.knows_all and not is_imported and not any(each.is_copied for each in inherited)
        chat = kept[-1] if kept else Chat() if is_known else None
        if any(each.lineage == "import" and '"merge"' in each.extras for each in journal.lineage):
            chat = None  # a merge does not say which entries are of the side whose state it has
        if lineage != "merge" and any(each.is_copied for each in journal.entries):
            chat = None  # cut within a merge, it has the state of the last entry of either side
        first = next((each.row.base for each in journal.ended if each.row), journal.page.processed)
        self.now = Folded(0 if lineage is None and self.knows_all else first, chat)
        self._parts: dict[str, list[JournalEvent]] = {}  # what attempts have left that did not end well, by wake
        if lineage in {"fork", "detach", "import"}:
            self.now.requests = pending_in(inherited)
            self.now.unsure = behind_an_end(inherited)
        if (export := journal.export) is not None:
            self._import(export)

    def _import(self, export: Export) -> None:
        """The requests and revisits of the export; the numbers of the entries that a merge had copied are not known."""
        lost = self.now.requests.keys() - self.now.unsure - export.requests
        assert not lost or not self.journal.is_plain, f"{self.journal.name}: its export has lost the requests {lost}"
        self.now.requests = {each: self.now.requests.get(each, 1) for each in export.requests}
        self.now.revisits = {key: Revisit(steps) for key, steps in export.revisits.items()}

    async def run(self) -> Folded:
        """Fold the journal.

        Raises:
            AssertionError: an entry contradicts earlier ones.
        """
        journal = self.journal
        numbers = [each.seq for each in journal.entries]
        expected = [*range(journal.page.first_seq, journal.page.last_seq + 1)]
        assert numbers == expected, f"{journal.name}: entries {numbers}, not {expected}"
        ids = [each.event_id for each in journal.entries if each.event_id is not None]
        assert len(ids) == len(set(ids)), f"{journal.name}: an event id twice: {sorted(ids)}"
        attempts = {each.first: each for each in journal.attempts}
        for entry in journal.entries:
            if entry.seq <= journal.inherited:
                continue
            if entry.wake_id is None:
                self._input(entry)
            elif (attempt := attempts.get(entry.seq)) is not None:
                with self._about(attempt):
                    await self._attempt(attempt)
        assert journal.page.processed == self.now.mark, f"{self._at()}: processed {journal.page.processed}"
        return self.now

    def _at(self) -> str:
        return f"{self.journal.name}, by its entries processed up to {self.now.mark}"

    @contextmanager
    def _about(self, attempt: Attempt) -> Iterator[None]:
        try:
            yield
        except AssertionError as error:
            raise AssertionError(f"{self.journal.name}, wake at {attempt.first}: {error}") from error

    # -- inputs

    def _input(self, entry: Entry) -> None:
        now = self.now
        if entry.kind in ANSWERS:
            self._resolve(fields(entry)["request_id"], f"{self.journal.name}: answer {entry.seq}")
            now.answered[fields(entry)["request_id"]] = entry.seq
        elif entry.kind == "user.interrupt":
            now.cleared |= dict.fromkeys(now.requests, entry.seq)
            now.requests.clear()
            for revisit in now.revisits.values():
                revisit.dropped_at = revisit.dropped_at or entry.seq
        elif entry.kind == "child.ended":
            event = read(entry)
            assert isinstance(event, ChildEnded)
            known = now.delegations.pop(event.delegation, None)
            assert event.delegation not in now.ended, f"{self.journal.name}: {entry.seq} is the second end of {event}"
            assert known is not None or not self.knows_all, f"{self.journal.name}: {entry.seq} ends nothing: {event}"
            now.ended[event.delegation] = event
        elif entry.kind in {"run.ended", "call.ended"}:
            self._end_of_run(entry)

    def _end_of_run(self, entry: Entry) -> None:
        """Each has one end, with the result of the number that it was given."""
        now, event = self.now, read(entry)
        assert isinstance(event, RunEnded | CallEnded)
        what, run = id_of_run(event)
        number = now.runs.pop(run, None)
        assert run not in now.ended_runs, f"{self.journal.name}: {entry.seq} is the second end of {event}"
        assert number is not None or not self.knows_all, f"{self.journal.name}: {entry.seq} ends nothing: {event}"
        now.ended_runs.add(run)
        found = (event.result, event.error and event.error.type)
        assert number is None or found == end_of_run(what, number), (
            f"{self.journal.name}: {number} has ended as {event}"
        )

    def _resolve(self, request_id: str, what: str, read: int | None = None) -> None:
        """An answer of a wake ``read`` entries before its own: an interrupt behind them comes too late for it."""
        now = self.now
        assert request_id not in now.resolved, f"{what} resolves request {request_id} again"
        now.resolved.add(request_id)
        known = now.requests.pop(request_id, None) is not None
        known |= read is not None and now.cleared.get(request_id, 0) > read
        assert known or not self.knows_all, f"{what}: request {request_id} does not wait"

    # -- wakes

    async def _attempt(self, attempt: Attempt) -> None:
        now, done, row = self.now, attempt.completed, attempt.row
        base, processed = (now.mark, now.mark) if row is None else (row.base, row.processed)
        assert base == now.mark, f"begins at {base}, not at {now.mark}"
        if attempt.is_ok:
            assert processed == attempt.read, f"has processed up to {processed}, and read up to {attempt.read}"
        else:
            error = done["error"]["type"] if done.get("result") == "error" else None
            assert error in {None, *ERRORS}, f"has failed: {done['error']}"
            self._check_final(attempt, error)
            if attempt.dead_letters is None:
                assert processed == base, f"has processed {base} to {processed}, and has failed"
        if attempt.events and base + 1 < self.journal.page.first_seq:
            self._skip(attempt)
        elif attempt.events:
            await self._wake(attempt, self.journal.inputs(base, attempt.read))
        if attempt.events and not attempt.is_ok:
            self._parts.setdefault(attempt.wake_id, []).extend(attempt.events)
        if attempt.dead_letters is not None:  # it may have failed itself, for an input that it was given alone
            self._dead_letters(attempt, attempt.dead_letters)
        now.mark = processed

    def _check_final(self, attempt: Attempt, error: str | None) -> None:
        """An error that is not retried is the last one, or that of several inputs, which are tried one by one."""
        if error == Broken.__name__ and attempt.row is not None and self.knows_all:
            several = len(self.journal.inputs(self.now.mark, attempt.read)) + len(attempt.started.get("revisits", []))
            assert several > 1 or attempt.row.outcome == "failed", f"{attempt.row} is not the last one"

    def _dead_letters(self, attempt: Attempt, letters: DeadLetters) -> None:
        """They are what the last wake was given that has failed for good."""
        assert attempt.row is not None
        base, processed = attempt.row.base, attempt.row.processed
        inputs = [each.seq for each in self.journal.inputs(base, processed)]
        known = base + 1 >= self.journal.page.first_seq
        assert letters.inputs == inputs or not known, f"sets aside {letters.inputs}, not {inputs}"
        before = [each for each in self.journal.ended if each.first < attempt.first]
        failed = [each for each in before if each.row is not None and not each.is_ok and each.read >= processed]
        assert failed or not self.knows_all, f"sets aside {letters}, with which no wake has failed"
        self._check_alone(letters)
        self.now.has_lost_run |= bool(self.journal.interrupts(base, processed + 1))
        for key in letters.revisits:
            assert self.now.revisits.pop(key, None) or not self.knows_all, f"sets aside revisit {key}, which is none"

    def _check_alone(self, letters: DeadLetters) -> None:
        """Inputs that fail together are tried one by one, unless there is an interrupt among them: only bad ones are
        set aside. Of those that retention has removed nobody knows whether one was an interrupt.
        """
        entries = [each for each in self.journal.entries if each.seq in letters.inputs]
        if len(entries) < len(letters.inputs) or any(each.kind == "user.interrupt" for each in entries):
            return  # an interrupt is read together with what it follows
        several = [*letters.inputs, *letters.revisits]
        assert len(several) == 1, f"sets aside {several} together"
        good = [each.seq for each in entries if isinstance(event := read(each), Script) and not may_fail(event.steps)]
        assert not good, f"sets aside {good}, which no wake fails for"

    def _skip(self, attempt: Attempt) -> None:
        """Retention has removed inputs of the wake."""
        *_, last = attempt.events
        assert isinstance(last, Kept), f"ends with {last}"
        self.now.chat = last.chat
        for each in attempt.expired:
            self.now.requests.pop(each, None)
        for event in attempt.events:
            if isinstance(event, ToolConfirmation | CustomToolUse) and not self._is_dropped(attempt):
                if event.request_id in attempt.expired:
                    continue  # it was withdrawn
                self.now.requests[event.request_id] = attempt.first
                if attempt.read + 1 < self.journal.page.first_seq:
                    self.now.unsure.add(event.request_id)
            elif isinstance(event, ChildDelegated):
                self.now.delegations[event.delegation] = event.child
            elif isinstance(event, RunStarted | CallStarted):
                self.now.runs[id_of_run(event)[1]] = int(str(event.input))

    def _is_dropped(self, attempt: Attempt) -> bool:
        """An interrupt that the wake has not read drops its requests and revisits."""
        return bool(self.journal.interrupts(attempt.read, attempt.first))

    async def _wake(self, attempt: Attempt, inputs: Sequence[Entry]) -> None:
        now, read = self.now, attempt.read
        assert read == (inputs[-1].seq if inputs else now.mark), f"has read up to {read}, which is no input"
        assert len(inputs) <= LIMITS.inputs, f"has {len(inputs)} inputs"
        seen = attempt.events[0]
        assert isinstance(seen, Seen), f"begins with {seen}"
        events = [*self._inputs(attempt, seen, inputs), *self._expired(attempt, seen)]
        before = self._before(attempt, seen)
        port = EntryPort(self.journal.name, attempt, seen, before, has_lost_run=now.has_lost_run)
        due = self._due(attempt, seen)
        chat = now.chat.model_copy(deep=True) if now.chat is not None else seen.before.model_copy(deep=True)
        assert chat == seen.before, f"was given the state {seen.before!r}, not {chat!r}"
        try:
            await perform(port, chat, attempt.wake_id, due, events)
        except Cut:
            pass
        else:
            assert attempt.is_ok, "has not ended well, and has left all its entries"
            now.has_lost_run = False
        port.end()
        self._withdrawn(attempt, seen, port)
        now.chat = chat
        self._add(attempt, port, {key for key, *_ in due})

    def _before(self, attempt: Attempt, seen: Seen) -> Before:
        """What earlier attempts of the wake have left, and this one does not add again itself."""
        parts = self._parts.get(attempt.wake_id, [])
        messages = [event.text for event in parts if isinstance(event, AgentMessage)]
        own = [each for key, each in self.now.revisits.items() if key.startswith(f"{attempt.wake_id}.")]
        revisits = [each.steps for each in own if each.dropped_at is None or each.dropped_at > attempt.read]
        return Before(bool(parts), [] if seen.before.adds_again else [*parts], messages[-1:], revisits)

    def _inputs(self, attempt: Attempt, seen: Seen, inputs: Sequence[Entry]) -> Sequence[tuple[str, JournalEvent]]:
        """The inputs that the handler was given: all but the answers that an interrupt has cleared."""
        given = set(seen.inputs)
        for each in inputs:
            if each.kind not in ANSWERS:
                assert each.seq in given, f"the handler was not given input {each.seq}"
            elif self.journal.interrupts(each.seq, attempt.read + 1):
                assert each.seq not in given, f"the handler was given answer {each.seq}, which is interrupted"
            elif not self.journal.interrupts(each.seq, attempt.first):
                assert each.seq in given, f"the handler was not given answer {each.seq}"
        shown = [each for each in inputs if each.seq in given]
        assert [each.seq for each in shown] == seen.inputs, f"the handler was given {seen.inputs}"
        return [(str(each.seq), read(each)) for each in shown]

    def _expired(self, attempt: Attempt, seen: Seen) -> Sequence[tuple[str, JournalEvent]]:
        """The answers to requests that have expired, which the end of the wake commits: no part does."""
        expected = seen.expired if attempt.is_ok else []
        given = attempt.expired[: len(expected)]
        assert given == expected, f"has answered {attempt.expired}, the handler was given {seen.expired}"
        for each in expected:
            self._resolve(each, "the wake", attempt.read)
        return [(expired_source(each), ConfirmationAnswer.expired_answer(each)) for each in seen.expired]

    def _withdrawn(self, attempt: Attempt, seen: Seen, port: EntryPort) -> None:
        """The requests that it has withdrawn, as expired ones. An answer may have come while it ran."""
        expected = [*seen.expired, *port.withdrawn] if attempt.is_ok else []
        assert attempt.expired == expected, f"has answered {attempt.expired}, not {expected}"
        for request_id in port.withdrawn:
            if request_id in port.requests:
                port.requests.remove(request_id)
                self.now.resolved.add(request_id)
            elif self.now.answered.get(request_id, 0) <= attempt.read and not self._is_dropped(attempt):
                self._resolve(request_id, "the wake", attempt.read)

    def _due(self, attempt: Attempt, seen: Seen) -> Sequence[Sequence[Any]]:
        keys = [key for key, *_ in seen.due]
        assert keys == attempt.started.get("revisits", []), f"the handler was given the revisits {keys}"
        for key, _, steps in seen.due:
            known = self.now.revisits.pop(key, None) if attempt.is_ok else self.now.revisits.get(key)
            if known is None:
                assert not self.knows_all, f"revisit {key} is due, and was not requested"
                continue
            if known.steps != steps and not self.knows_all:
                continue  # one of the same key was pending already, since entries that have gone
            assert known.steps == steps, f"revisit {key} has {steps}, not {known.steps}"
            late = known.dropped_at is None or known.dropped_at > attempt.read
            assert late, f"revisit {key} is due, and {known.dropped_at} has dropped it"
        return seen.due

    def _add(self, attempt: Attempt, port: EntryPort, due: set[str]) -> None:
        """The work that the wake has begun. A revisit that is due is pending no more: it may be requested again."""
        now = self.now
        if not self._is_dropped(attempt):
            now.requests |= dict.fromkeys(port.requests, attempt.first)
            for key, steps in port.revisits:
                known = now.revisits.get(key)
                if known is None or known.dropped_at is not None or key in due:
                    now.revisits[key] = Revisit(steps)
                    due.discard(key)
        now.delegations |= port.delegations
        now.runs |= port.runs
        now.made_again |= now.made.keys() & port.made
        now.made |= port.made
        if attempt.is_ok:
            value = port.result if port.result is not None else port.message
            may_end = port.result is not None or not (now.delegations or now.runs)
            now.results.append(Result(value, attempt.read, may_end=may_end))


class Cut(Exception):
    """The attempt has left the parts so far, and nothing else."""


@dataclass
class Before:
    """What earlier attempts of a wake have committed; what an attempt adds with the same content counts as that."""

    has_parts: bool
    left: list[JournalEvent]
    messages: Sequence[str]
    """The text of the last one, if there is one."""
    revisits: list[list[Any]]
    """Steps of those without a key."""

    def take(self, is_same: Callable[[JournalEvent], bool]) -> JournalEvent | None:
        """The first one that is left; it counts for no other."""
        found = next(filter(is_same, self.left), None)
        if found is not None:
            self.left.remove(found)
        return found


def pending_in(entries: Sequence[Entry]) -> dict[str, int]:
    """The requests that are pending behind these entries, each with the number of its entry. An interrupt also drops
    the requests of a wake that has not read it. A merge or an import on the way may have dropped some more.
    """
    found: dict[str, int] = {}
    reads: dict[str, int] = {}
    dropped = 0
    for entry in entries:
        about = fields(entry)
        if entry.is_copied:
            found.clear()
        elif entry.kind == "span.started" and "read" in about:
            reads[entry.wake_id or ""] = about["read"]
        elif entry.kind in ASKING and reads.get(entry.wake_id or "", 0) >= dropped:
            found[about["request_id"]] = entry.seq
        elif entry.kind in ANSWERS:
            found.pop(about["request_id"], None)
        elif entry.kind == "user.interrupt":
            found.clear()
            dropped = entry.seq
        elif about.get("status") == "terminated":
            found.clear()
    return found


def behind_an_end(entries: Sequence[Entry]) -> set[str]:
    """Requests behind the end of an ancestor: pending if a fork from behind the end has made them, and not if the wake
    did that ran when the ancestor ended.
    """
    ends = [each.seq for each in entries if fields(each).get("status") == "terminated"]
    return {fields(each)["request_id"] for each in entries if each.kind in ASKING and ends and each.seq > ends[0]}


class EntryPort:
    """Compares the steps with the entries that an attempt has committed."""

    def __init__(self, name: str, attempt: Attempt, seen: Seen, before: Before, *, has_lost_run: bool) -> None:
        self._has_lost_run = has_lost_run
        self.name, self.wake_id, self.is_ok, self.events = name, attempt.wake_id, attempt.is_ok, attempt.events[1:]
        self.requests: list[str] = []
        self.withdrawn: Sequence[str] = ()
        self.revisits: list[tuple[str, list[Any]]] = []
        self.delegations: dict[str, str] = {}
        self.runs: dict[str, int] = {}
        self.made: dict[str, str] = {}
        self._calls: dict[str, tuple[str, int]] = {}
        self.place = ""
        self.result: Any = None
        self.message = next(iter(before.messages), None)
        self._before = before
        assert seen.has_parts or not before.has_parts, f"does not know of {before}"
        self._ids = f"{self.wake_id}.{seen.attempt}" if seen.has_parts else self.wake_id
        self._at = 0
        self._number = 0

    def _next(self, expected: object) -> JournalEvent:
        assert self._at < len(self.events), f"ends without {expected!r}"
        self._at += 1
        return self.events[self._at - 1]

    def _refused(self, what: str) -> bool:
        """Whether the step was refused."""
        event = self.events[self._at] if self._at < len(self.events) else None
        found = isinstance(event, Refused) and (event.what, event.place) == (what, self.place)
        self._at += found
        return found

    def _new_id(self) -> str:
        self._number += 1
        return f"{self._ids}.{self._number}"

    def end(self) -> None:
        """There are no more entries."""
        assert self._at == len(self.events), f"has {self.events[self._at :]} behind what the steps give"

    async def emit(self, event: JournalEvent) -> None:
        if isinstance(event, AgentMessage):
            self.message = event.text
        if self._before.take(lambda each: each == event) is None:
            found = self._next(event)
            assert found == event, f"has {found!r}, not {event!r}"

    async def commit(self) -> None:
        """Nothing may be behind the last part of an attempt that has not ended well. A wake that has made a
        conversation commits no part any more.
        """
        if self._at == len(self.events) and not self.is_ok and not self.made:
            raise Cut

    async def stream(self, parts: int) -> None:
        pass

    async def step(self, number: int, once: bool) -> None:
        await self.emit(Noted(f"step {number}"))

    async def group(self, attempts: int, final: bool) -> None:
        await self.emit(Noted("group"))

    async def run(self, number: int, known: str | None) -> str:
        """It goes on, unless an interrupt or its end has ended it; an interrupt that is set aside ends it too."""
        found = self._next("a run")
        assert isinstance(found, Noted), f"has {found!r}, not its run"
        run_id = found.text.removeprefix("run ")
        if self._has_lost_run:
            assert run_id != known, f"is in run {run_id}, which an interrupt has ended"
        else:
            assert known is None or run_id == known, f"is in run {run_id}, and {known} has not ended"
        return run_id

    async def fail(self, attempts: int, final: bool) -> None:
        pass

    async def require(self, kind: str, expires_in: float | None) -> str | None:
        of_kind = ToolConfirmation if kind == "confirm" else CustomToolUse
        known = self._before.take(lambda each: isinstance(each, of_kind))
        if isinstance(known, ToolConfirmation | CustomToolUse):
            return known.request_id
        if self._refused("require"):
            return None
        found = self._next(kind)
        assert isinstance(found, of_kind), f"has {found!r}, not {kind}"
        assert found.request_id == self._new_id(), f"has {found!r}, another id"
        self.requests.append(found.request_id)
        return found.request_id

    async def withdraw(self) -> Sequence[str]:
        found = self._next("what it has withdrawn")
        assert isinstance(found, Noted), f"has {found!r}, not what it has withdrawn"
        what, *self.withdrawn = found.text.split()
        assert what == "withdrew", f"has {found!r}, not what it has withdrawn"
        return self.withdrawn

    async def revisit(self, delay: float, key: str | None, steps: list[Any]) -> None:
        own = self._new_id() if key is None else key
        if key is None and steps in self._before.revisits:
            self._before.revisits.remove(steps)
        elif not self._refused("revisit"):
            self.revisits.append((own, steps))

    async def delegate(self, child: str, cycles: int, steps: list[Any]) -> None:
        wanted = (f"{self.name}/{child}", cycles)
        if self._before.take(
            lambda each: isinstance(each, ChildDelegated) and (each.child, each.max_cycles) == wanted
        ) or self._refused("delegate"):
            return
        found = self._next(child)
        assert isinstance(found, ChildDelegated), f"has {found!r}, not a delegation"
        expected = (*wanted, self._new_id())
        assert (found.child, found.max_cycles, found.delegation) == expected, f"has {found!r}"
        self.delegations[found.delegation] = found.child

    async def start(self, what: str, number: int) -> None:
        of_kind = RunStarted if what == "run" else CallStarted
        if self._before.take(lambda each: isinstance(each, of_kind) and each.input == number):
            return
        found = self._next(what)
        assert isinstance(found, RunStarted | CallStarted), f"has {found!r}, not what was started"
        expected = (what, self._new_id())
        assert (id_of_run(found), found.input) == (expected, number), f"has {found!r}, not {expected}"
        self.runs[expected[1]] = number

    async def make(self, what: str, name: str, other: int) -> None:
        if not self._refused(what):
            await self.emit(Noted(f"{what} {self.name}~{name}"))
            first = self._calls.setdefault(name, (what, other))
            assert first == (what, other), f"has made {name} by {first}, and by {what, other}"
            self.made[f"{self.name}~{name}"] = what

    async def call(self, what: str, to: int, steps: list[Any]) -> None:
        found = self._next(what)
        assert isinstance(found, Noted), f"has {found!r}, not what it has called"
        called, _, outcome = found.text.partition(": ")
        assert called == f"{what} {to} at {self.place}", f"has {found!r}, not {what} {to} at {self.place}"
        if what in {"ask", "meet"} and self.name == talk_id(to):
            assert outcome in {"WakeMisuse", NOT_CALLED}, f"has asked itself: {outcome}"

    def finish(self, result: int) -> None:
        self.result = result

    @contextmanager
    def span(self) -> Iterator[None]:
        yield
