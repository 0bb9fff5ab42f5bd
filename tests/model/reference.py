"""The contents that a database must have: the contract in plain Python, without locks, routes or SQL.

Texts are unique tags (``start 7``), so that read values differ. Session leases are not predicted: the provider
chooses the worker, and `tests.model.leases` judges it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from affinity.conversation.journal import SEQ_MARK, JournalAppend, JournalStart, JournalWrite, journal_writes
from affinity.provider.contract import (
    FINISHED,
    Generation,
    Incarnation,
    NewInstance,
    NewMessage,
    NewWorkItem,
    Reset,
    SessionInfo,
    Suspend,
    Token,
    Turn,
    WorkAbandon,
    WorkerIdentity,
    WorkItem,
    WorkKey,
    WorkLock,
)
from affinity.session import StateWrite
from tests.model.journals import ModelJournal

# No sum of whole seconds, by which plans let time pass, comes near the end of one of these.
LEASE: Final = 15.5
ITEM_LOCK: Final = 30.5
SESSION_LOCK: Final = 60.5
HOLD: Final = 120.5


@dataclass
class ModelMessage:
    """A row of the queue of messages."""

    text: str
    visible_at: float
    number: int  # grows with arrival
    timer: tuple[int, int] | None = None
    ordered: bool = True  # False: beside what came in the same transaction


@dataclass
class ModelItem:
    """A row of the queue of work."""

    key: WorkKey
    text: str
    session_id: str | None
    visible_at: float
    token: Token | None = None
    holder: WorkerIdentity | None = None
    until: float = 0.0
    attempts: int = 0
    failures: int = 0
    order: tuple[int, int] | None = None  # the commit, and its place there; None: it is not ordered
    was_first: bool = False  # it was delivered: of the ordered items of its session it is the first, until it is gone


@dataclass
class ModelInstance:
    """An instance with its rows."""

    generation: int
    new: NewInstance
    execution_id: int = 1
    status: str = "pending"
    owner: WorkerIdentity | None = None
    histories: dict[int, list[str]] = field(default_factory=lambda: {1: []})
    messages: list[ModelMessage] = field(default_factory=list)
    items: dict[WorkKey, ModelItem] = field(default_factory=dict)
    watches: dict[str, str] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)  # of the messages that it has got
    needs_code: bool = False  # as it was suspended last
    tried: set[str] = field(default_factory=set)  # code versions that have suspended it at this point
    tried_at: tuple[int, int] = (0, 0)  # execution and number of events

    @property
    def finished(self) -> bool:
        return self.status in FINISHED

    @property
    def event_count(self) -> int:
        return len(self.histories[self.execution_id])


@dataclass
class ModelRecord:
    """A record of session state; its content is what was saved into it, one line a save."""

    content: str
    version: int
    epoch: int | None
    key: str | None = None


@dataclass
class ModelLease:
    """A row of workers."""

    incarnation: str
    until: float
    draining: bool = False


@dataclass(frozen=True)
class SentTurn:
    """A turn, and what its worker knows beyond it."""

    turn: Turn
    generation: int  # of the instance that it was made for
    consumed: Sequence[str]  # texts of the messages


@dataclass
class Reference:
    """The state of the database, as far as the contract foretells it."""

    now: float = 0.0
    generations: int = 0
    numbers: int = 0
    workers: dict[str, ModelLease] = field(default_factory=dict)
    instances: dict[str, ModelInstance] = field(default_factory=dict)
    records: dict[str, ModelRecord] = field(default_factory=dict)
    journals: dict[str, ModelJournal] = field(default_factory=dict)
    commits: int = 0

    # -- reading

    def is_alive(self, identity: WorkerIdentity | None) -> bool:
        """Whether the very incarnation has a lease."""
        lease = None if identity is None else self.workers.get(identity.worker_id)
        return lease is not None and lease.until > self.now and lease.incarnation == identity.incarnation  # type: ignore[union-attr]

    def is_draining(self, identity: WorkerIdentity) -> bool:
        """Whether the worker has said that it leaves."""
        return self.workers[identity.worker_id].draining

    def items(self) -> list[ModelItem]:
        """All queued work."""
        return [item for instance in self.instances.values() for item in instance.items.values()]

    def messages(self) -> int:
        """The number of queued messages."""
        return sum(len(instance.messages) for instance in self.instances.values())

    def find(self, lock: WorkLock) -> ModelItem | None:
        """The item, if the token is live."""
        item = self.carrier(lock)
        return item if item is not None and item.until > self.now else None

    def carrier(self, lock: WorkLock) -> ModelItem | None:
        """The item, if it still has the token."""
        instance = self.instances.get(lock.key.instance_id)
        item = None if instance is None else instance.items.get(lock.key)
        return item if item is not None and item.token == lock.token else None

    def is_free(self, item: ModelItem) -> bool:
        """Whether somebody may fetch the item, as far as its own lock goes."""
        taken = item.token is not None and item.until > self.now and self.is_alive(item.holder)
        return item.visible_at <= self.now and not taken

    def is_blocked(self, item: ModelItem) -> bool:
        """Whether an ordered item of the same session comes before it. Of two that different instances have queued in
        one commit, any does until one of them was delivered.
        """
        return item.order is not None and any(
            other.was_first
            or other.order[0] < item.order[0]
            or (other.order[0] == item.order[0] and other.key[0] == item.key[0] and other.order[1] < item.order[1])
            for other in self.items()
            if other is not item and other.order is not None and other.session_id == item.session_id
        )

    def visible(self, instance: ModelInstance, exclude: Iterable[str] = ()) -> list[ModelMessage]:
        """The messages that a fetch of the instance gives, in order."""
        visible = [m for m in instance.messages if m.visible_at <= self.now]
        found = _without(visible, exclude)
        return sorted(found, key=lambda m: (m.visible_at, m.number))

    # -- workers

    def register(self, identity: WorkerIdentity) -> None:
        """A worker has its name and a lease."""
        self.workers[identity.worker_id] = ModelLease(identity.incarnation, self.now + LEASE)

    def leave(self, identity: WorkerIdentity, *, for_good: bool) -> None:
        """A worker drains, or is gone."""
        lease = self.workers.get(identity.worker_id)
        if lease is None or lease.incarnation != identity.incarnation:
            return
        if for_good:
            lease.until = min(lease.until, self.now)
        else:
            lease.draining = True

    def hand_over(self, identity: WorkerIdentity, instance_id: str, to: str | None) -> None:
        """An instance is free, or another worker's."""
        instance = self.instances.get(instance_id)
        if instance is None or instance.owner != identity or not self.is_alive(identity):
            return
        heir = None if to is None else self.workers.get(to)
        taken = heir is not None and heir.until > self.now and not heir.draining
        instance.owner = (
            WorkerIdentity(worker_id=to, incarnation=Incarnation(heir.incarnation)) if taken and to and heir else None
        )

    def end_leases(self) -> None:
        """The database has lost commits: no worker is alive."""
        for lease in self.workers.values():
            lease.until = min(lease.until, self.now)

    def sweep_workers(self, retention: float, kept: Set[str]) -> None:
        """Rows of workers whose lease ended long ago are gone, or kept for a reason."""
        self.workers = {
            name: lease for name, lease in self.workers.items() if lease.until > self.now - retention or name in kept
        }

    # -- messages and instances

    def create(self, new: NewInstance) -> bool:
        """Create an instance with its start message, unless the id is taken."""
        if new.instance_id in self.instances:
            if new.on_exists is not None and new.parent_id is not None:
                self.send(NewMessage(instance_id=new.parent_id, payload=new.on_exists), ordered=False)
            return False
        self.generations += 1
        self.instances[new.instance_id] = ModelInstance(self.generations, new)
        self.send(NewMessage(instance_id=new.instance_id, payload=new.start, delay=new.delay))
        return True

    def restart(self, new: NewInstance) -> bool:
        """Begin an ended instance again, as another one whose history the former one begins."""
        former = self.instances.get(new.instance_id)
        if former is None or not former.finished:
            return False
        self.generations += 1
        execution = former.execution_id + 1
        histories = former.histories | {execution: []}
        self.instances[new.instance_id] = ModelInstance(self.generations, new, execution, histories=histories)
        self.send(NewMessage(instance_id=new.instance_id, payload=new.start))
        return True

    def send(self, new: NewMessage, *, ordered: bool = True) -> str:
        """Queue a message; what became of it."""
        instance = self.instances.get(new.instance_id)
        if instance is None:
            return "unknown"
        if new.key is not None and new.key in instance.keys:
            return "repeated"
        if instance.finished:
            return "finished"
        if new.key is not None:
            instance.keys.add(new.key)
        self.numbers += 1
        message = ModelMessage(new.payload, self.now + max(0.0, new.delay), self.numbers, new.timer, ordered)
        instance.messages.append(message)
        return "delivered"

    def delete(self, instance_ids: Sequence[str], *, force: bool, tree: bool = True) -> list[str]:
        """Remove instances with all their rows, each with its tree or not at all, and notify the parents that stay."""
        trees = {name: self._tree(name) if tree else {name} for name in instance_ids if name in self.instances}
        doomed = {n for n, members in trees.items() if force or all(self.instances[m].finished for m in members)}
        gone = {name: self.instances[name] for root in doomed for name in trees[root]}
        answers = [
            "unknown" if name not in trees else "deleted" if name in doomed else "running" for name in instance_ids
        ]
        for name, instance in gone.items():
            del self.instances[name]
            parent = None if instance.new.parent_id is None else self.instances.get(instance.new.parent_id)
            is_notified = (
                parent is not None and parent.new.generation == instance.new.parent_generation and not instance.finished
            )
            if is_notified and instance.new.parent_id not in gone and instance.new.on_deleted is not None:
                text = instance.new.on_deleted
                self.send(NewMessage(instance_id=instance.new.parent_id or "", payload=text), ordered=False)
        return answers

    def _tree(self, root: str) -> set[str]:
        """An instance, its children, and theirs."""
        found, grown = set[str](), {root}
        while grown > found:
            found = grown
            grown = found | {
                name
                for name, instance in self.instances.items()
                if instance.new.parent_id in found
                and self.instances[instance.new.parent_id].new.generation == instance.new.parent_generation
            }
        return found

    def notify_watchers(self, session_id: str) -> None:
        """The session has another holder."""
        for instance_id, instance in self.instances.items():
            if session_id in instance.watches:
                self.send(NewMessage(instance_id=instance_id, payload=instance.watches[session_id]), ordered=False)

    def watched(self, session_id: str) -> bool:
        """Whether some instance wants to know about the session."""
        return any(session_id in instance.watches for instance in self.instances.values())

    # -- work

    def lock(self, identity: WorkerIdentity, got: WorkItem) -> None:
        """The item was delivered."""
        item = self.instances[got.lock.key.instance_id].items[got.lock.key]
        item.token, item.holder, item.until = got.lock.token, identity, self.now + ITEM_LOCK
        item.attempts += 1
        item.was_first = True

    def unlock(self, item: ModelItem, *, counted: bool) -> None:
        """The item is anyone's again."""
        item.token = item.holder = None
        item.attempts -= not counted

    def abandon(self, given: WorkAbandon) -> bool:
        """An item is given back."""
        item = self.find(given.lock)
        if item is None:
            return False
        self.unlock(item, counted=given.count_attempt)
        item.failures += given.failed
        if given.delay > 0:
            item.visible_at = self.now + given.delay
        return True

    def ack(self, lock: WorkLock, message: str) -> None:
        """A result takes the place of its item."""
        del self.instances[lock.key.instance_id].items[lock.key]
        self.send(NewMessage(instance_id=lock.key.instance_id, payload=message))

    # -- session state

    def fits(self, write: StateWrite, sessions: Mapping[str, SessionInfo]) -> bool:
        """Whether a state passes its fence."""
        record = self.records.get(write.new.session_id)
        row = sessions.get(write.new.session_id)
        newest = max(row.epoch if row else 0, (record.epoch or 0) if record else 0)
        return (record.version if record else 0) == write.base_version and newest <= write.epoch

    def write(self, session_id: str, content: str, *, epoch: int | None = None, key: str | None = None) -> None:
        """Replace a record."""
        old = self.records.get(session_id)
        kept = epoch if epoch is not None or old is None else old.epoch
        self.records[session_id] = ModelRecord(content, (old.version if old else 0) + 1, kept, key)

    # -- journals

    def append(self, new: JournalAppend) -> tuple[str, int, bool]:
        """Append an input from outside: the outcome, its number, and whether the journal is new."""
        journal, instance = self.journals.get(new.session_id), self.instances.get(new.session_id)
        refusal = self._find_refusal(new, journal, instance)
        known = None if journal is None or new.entry is None else journal.find(new.entry.event_id)
        if known is not None and new.entry is not None:
            return ("repeated" if known.text == new.entry.payload else "other_event", known.seq, False)
        if refusal is not None:
            return (refusal, 0, False)
        if journal is None:  # it begins with an instance of its own
            self.delete([new.session_id], force=True, tree=False)
        if new.session_id not in self.instances and new.start is not None:
            start = new.start
            self.create(
                NewInstance(
                    instance_id=new.session_id,
                    name=start.name,
                    start=start.start,
                    generation=Generation(start.generation),
                    version=None,
                )
            )
        if journal is None:
            assert new.start is not None
            journal = self.journals[new.session_id] = ModelJournal(new.start.journal_id)
        created = journal.last_seq == 0
        journal.append(new)
        if new.message is not None:
            text = new.message.replace(SEQ_MARK, str(journal.last_seq))
            self.send(NewMessage(instance_id=new.session_id, payload=text))
        return ("appended", journal.last_seq, created)

    def _find_refusal(
        self, new: JournalAppend, journal: ModelJournal | None, instance: ModelInstance | None
    ) -> str | None:
        if journal is None and new.start is None:
            return "unknown"
        if (journal is not None and journal.closed) or (instance is not None and instance.finished):
            return "closed"
        if new.answers is not None:
            request = None if journal is None else journal.requests.get(new.answers.request_id)
            if request is None or request.is_expired(self.now):
                return "not_pending"
        return "unknown" if instance is None and new.start is None and new.message is not None else None

    def fits_journal(self, write: JournalWrite) -> bool:
        """Whether what a wake writes passes its fence."""
        journal = self.journals.get(write.session_id)
        return journal is not None and (journal.journal_id, journal.processed) == (write.journal_id, write.base)

    # -- turns

    def judge(
        self, identity: WorkerIdentity, sent: Sequence[SentTurn], sessions: Mapping[str, SessionInfo]
    ) -> list[bool]:
        """Which turns of a batch must pass."""
        if not self.is_alive(identity):
            return [False] * len(sent)
        spent: set[WorkLock] = set()
        written: set[tuple[str, str]] = set()
        verdicts = []
        for one in sent:
            turn = one.turn
            names = {("state", write.new.session_id) for write in turn.states}
            names |= {("journal", write.session_id) for write in turn.parts}
            passes = (
                self._is_current(identity, turn, one.generation)
                and all(self.find(lock) and lock not in spent for lock in turn.acks)
                and all(self.fits(write, sessions) for write in turn.states)
                and all(self.fits_journal(write) for write in journal_writes(turn.parts))
                and not names & written
            )
            verdicts.append(passes)
            if passes:
                spent.update(turn.acks)
                written |= names
        return verdicts

    def suspend(self, identity: WorkerIdentity, one: Suspend, generation: int) -> bool:
        """Take an instance out of service."""
        if not (self.is_alive(identity) and self._is_current(identity, one, generation)):
            return False
        instance = self.instances[one.instance_id]
        instance.status, instance.owner, instance.needs_code = "suspended", None, one.needs_code
        point = (one.execution_id, one.event_count)
        instance.tried = instance.tried | {one.code} if instance.tried_at == point else {one.code}
        instance.tried_at = point
        return True

    def resume(self, instance_id: str) -> str:
        """An operator lets an instance go on."""
        instance = self.instances.get(instance_id)
        if instance is None:
            return "unknown"
        if instance.status != "suspended":
            return "not_suspended"
        instance.status = "running"
        instance.tried.clear()
        return "resumed"

    def untried(self, code: str) -> set[str]:
        """Suspended instances that other code may go on with, and this one has not tried."""
        return {
            name
            for name, instance in self.instances.items()
            if instance.status == "suspended" and instance.needs_code and code not in instance.tried
        }

    def reset(self, one: Reset) -> None:
        """Begin an execution with the first events of the last one; what it is sent comes before all that waits."""
        instance = self.instances[one.instance_id]
        kept = instance.histories[instance.execution_id][: one.keep]
        instance.execution_id += 1
        instance.histories[instance.execution_id] = [*kept, *one.history]
        instance.status, instance.owner = "running", None
        instance.items.clear()
        timers = {m.timer[1]: m for m in instance.messages if m.timer and m.timer[0] == one.execution_id}
        instance.messages = [m for m in instance.messages if not m.timer or m.timer[0] != one.execution_id]
        first = min([self.now, *(m.visible_at for m in instance.messages)]) - 1
        for message in one.messages:
            self.send(message)
            sent = instance.messages[-1]
            if sent.timer is not None and (before := timers.get(sent.timer[1])) is not None:
                sent.visible_at, sent.number = before.visible_at, before.number
            elif not message.delay:
                sent.visible_at = first
        for item in one.work_items:
            self._queue(instance, item)

    def _is_current(self, identity: WorkerIdentity, turn: Turn | Suspend, generation: int) -> bool:
        instance = self.instances.get(turn.instance_id)
        return (
            instance is not None
            and not instance.finished
            and instance.generation == generation
            and instance.owner == identity
            and (instance.execution_id, instance.event_count) == (turn.execution_id, turn.event_count)
        )

    def commit(self, passed: Sequence[SentTurn]) -> None:
        """Apply the turns that pass, all together."""
        turns = [one.turn for one in passed]
        self.commits += 1
        for one in passed:
            self._consume(one)
            self._advance(self.instances[one.turn.instance_id], one.turn)
        for turn in turns:
            for child in turn.instances:
                self.create(child)
        for turn in turns:
            for message in turn.messages:
                self.send(message)
        for turn in turns:
            instance = self.instances[turn.instance_id]
            for item in turn.work_items:
                self._queue(instance, item)
            instance.watches.update(turn.watches)
        for turn in turns:
            self._cancel(self.instances[turn.instance_id], turn)

    def _advance(self, instance: ModelInstance, turn: Turn) -> None:
        for lock in turn.acks:
            del self.instances[lock.key.instance_id].items[lock.key]
        for one in journal_writes(turn.parts):
            self.journals[one.session_id].write(one, self.now)
        for write in turn.states:
            self.write(write.new.session_id, write.new.state.decode(), epoch=write.epoch)
        instance.histories[instance.execution_id] += turn.history
        instance.status = "running" if turn.update is None else turn.update.status
        if turn.update is not None and turn.update.continued:
            instance.execution_id += 1
            instance.histories[instance.execution_id] = []

    def _consume(self, one: SentTurn) -> None:
        instance = self.instances[one.turn.instance_id]
        instance.messages = _without(instance.messages, one.consumed)

    def _queue(self, instance: ModelInstance, new: NewWorkItem) -> None:
        visible_at = self.now + max(0.0, new.delay)
        order = (self.commits, len(instance.items)) if new.ordered else None
        instance.items[new.key] = ModelItem(new.key, new.payload, new.session_id, visible_at, order=order)

    def _cancel(self, instance: ModelInstance, turn: Turn) -> None:
        for number in turn.cancel_activities:
            instance.items.pop(WorkKey(turn.instance_id, turn.execution_id, number), None)
        timers = {(turn.execution_id, number) for number in turn.cancel_timers}
        instance.messages = [m for m in instance.messages if m.timer not in timers]
        if instance.finished:
            instance.messages.clear()
            instance.items.clear()
            instance.watches.clear()


def _instance_of(name: str, start: JournalStart) -> NewInstance:
    return NewInstance(
        instance_id=name,
        name=start.name,
        start=start.start,
        generation=Generation(start.generation),
        version=start.version,
    )


def _without(messages: Sequence[ModelMessage], texts: Iterable[str]) -> list[ModelMessage]:
    """The messages that are left; a text that is there twice (of a session that moved twice) is taken once."""
    taken = Counter(texts)
    left = []
    for message in messages:
        if taken[message.text] > 0:
            taken[message.text] -= 1
        else:
            left.append(message)
    return left
