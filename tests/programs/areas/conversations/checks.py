"""Checks at rest: each conversation by itself, and the conversations and clients against each other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from affinity import ConversationHandle, Conversations
from affinity.conversation import ConversationInfo, JournalEntry, Retracted, Streamed
from affinity.errors import EventIdConflict, WakeFailed, WakeMisuse
from affinity.limits import MAX_PAGE
from tests.programs.areas.conversations.clients import REMOVING, Act, Feed, Played, about, act_of
from tests.programs.areas.conversations.handler import CHILD, NAME, make, talk_id
from tests.programs.areas.conversations.journal import Journal, fields, read_journal
from tests.programs.areas.conversations.oracle import Fold, Folded
from tests.programs.areas.conversations.script import ROOTS, Do
from tests.programs.play import Play

REASONS = {"request", "input", "revisit", "wake_failed", "child"}
"""Reasons why a conversation may wait at rest."""


class Checks:
    """Of one part."""

    def __init__(self, play: Play, played: Played) -> None:
        self.play, self.played, self.client = play, played, play.env.client
        self.kinds: Mapping[str, Conversations[Any]] = dict(zip((NAME, CHILD), make(), strict=True))
        self.infos: dict[str, ConversationInfo] = {}
        self.journals: dict[str, Journal] = {}
        self.folded: dict[str, Folded] = {}
        self.has_pruned = any(act.op.do == "prune" for act in played.acts)
        self.acts = [*played.acts, *map(act_of, play.calls.talks)]

    def talk(self, name: str) -> ConversationHandle:
        """The handle of a conversation that is there."""
        return self.client.conversation(self.kinds[self.infos[name].kind], name)

    async def run(self) -> None:
        """All of them.

        Raises:
            AssertionError: a rule is broken; names the conversation.
        """
        imported = {act.made: act.imported for act in self.played.acts if act.imported is not None}
        async for info in self.client.list_conversations(prefix=f"{NAME}-"):
            self.infos[info.conversation_id] = info
            export = imported.get(info.conversation_id)
            journal = await read_journal(self.client, info.conversation_id, export)
            assert journal is not None, f"{info.conversation_id} is listed, and has no journal"
            self.journals[info.conversation_id] = journal
        for name, journal in self.journals.items():
            self.folded[name] = await Fold(journal).run()
        for name in self.journals:
            await self._state(name)
            await self._rest(name)
            await self._pending(name)
            await self._usage(name)
            await self._wakes(name)
            self._about(name)
            self._delegations(name)
            self._results(name)
            self._made(name)
        assert not self.played.hung, f"have not returned: {[*map(_shown, self.played.hung)]}"
        for act in self.acts:
            self._sent(act)
            self._reply(act)
            await self._ended(act)
        for feed in self.played.feeds:
            await self._feed(feed)

    # -- each conversation

    async def _state(self, name: str) -> None:
        """The record is the state that the entries lead to."""
        record = await self.client.session_store.load(name)
        expected = self.folded[name].chat
        if expected is not None and (expected.wakes or record is not None):
            assert record is not None, f"{name} has no state, instead of {expected!r}"
            found = from_json(record.state)
            assert found == expected.model_dump(), f"{name} has the state {found}, not {expected!r}"

    async def _rest(self, name: str) -> None:
        """It waits for something that has a name."""
        info, journal = self.infos[name], self.journals[name]
        if journal.page.instance_status is None:
            assert self._was(name, "remove", "forget", "delete"), f"{name} has no instance"
            return  # until the next event
        assert info.status not in {"running", "rescheduling"}, (
            f"{name} is {info.status} at rest: {await self._why(name)}"
        )
        unread = journal.inputs(self.folded[name].mark, journal.page.last_seq)
        if unread:
            seqs = [each.seq for each in unread]
            assert info.status in {"failed", "terminated"}, f"{name} is {info.status}, and has not read {seqs}"
        if info.status == "failed":
            last = journal.ended[-1].completed if journal.ended else {}
            assert last.get("result") == "error" or not journal.is_whole, (
                f"{name} has failed, and its last wake is {last}"
            )
        if info.status == "terminated":
            assert journal.page.instance_status != "running", f"{name} is terminated, and its instance runs"
            return
        children = [*self.folded[name].delegations.values(), *self.folded[name].runs]
        is_known = journal.is_whole and journal.own.lineage is None and not self._has_removed_below(name)
        if info.status in {"idle", "waiting"} and is_known:
            assert (info.status == "waiting") == bool(children), f"{name} is {info.status}, and waits for {children}"
        explanation = await self.client.explain(name)
        code = None if explanation is None else explanation.code
        assert code in REASONS or code is None, f"{name}: {explanation}"
        assert (code is None) == (journal.page.instance_status is None), f"{name}: {explanation} of {journal.page}"

    async def _wakes(self, name: str) -> None:
        """Each wake has the row that its trace tells of; what closes a trace at the end has none."""
        journal = self.journals[name]
        spans = [(each.wake_id, each.read, each.is_ok) for each in journal.ended if each.has_row]
        rows = [(each.wake_id, each.read, each.outcome == "done") for each in journal.wakes]
        cut = 0 if journal.is_whole else len(rows) - len(spans)  # retention has cut a trace, and kept its end
        assert rows[cut:] == spans, f"{name} has the wakes {rows}, and the spans {spans}"
        page = await self.talk(name).history(after=max(journal.inherited, journal.page.first_seq - 1), limit=MAX_PAGE)
        found, known = await self.talk(name).processed_by(page), {each.seq for each in page}
        ended = [(each.wake_id, each.row) for each in journal.ended if each.row is not None]
        inputs = {each.seq: wake for wake, row in ended for each in journal.inputs(row.base, row.processed)}
        expected = {seq: wake for seq, wake in inputs.items() if seq in known}
        assert found == expected or (not journal.is_whole and found.items() >= expected.items()), (
            f"{name}: its inputs were processed by {found}, not {expected}"
        )

    def _about(self, name: str) -> None:
        """Children, forks and merges have the owner and the labels of the conversation that they come from."""
        acts = [each for each in self.played.acts if re.match(rf"{re.escape(each.name)}([/~]|$)", name)]
        known = [about(each.event_id) for each in acts if each.op.do == "describe"]
        (root,) = [each for each in map(talk_id, range(ROOTS)) if name.startswith(each)]
        is_owned = root in self.played.owned
        if is_owned:
            known.append(about(root))
        if not is_owned or any(each.op.do in REMOVING for each in acts):
            known.append({"owner": None, "labels": {}})
        found = {"owner": self.infos[name].owner, "labels": dict(self.infos[name].labels)}
        assert found in known, f"{name} has {found}, not one of {known}"

    async def _why(self, name: str) -> str:
        found = await self.client.explain(name)
        return "no reason" if found is None else found.sentence

    async def _pending(self, name: str) -> None:
        """Requests and revisits agree with the entries, and the inbox has the requests that take an answer."""
        info, folded, talk = self.infos[name], self.folded[name], self.talk(name)
        requests = {each.request_id for each in await talk.requests()}
        inbox = [each async for each in self.client.requests(prefix=name) if each.conversation_id == name]
        open_requests = set() if info.status == "terminated" else requests
        assert {each.request_id for each in inbox} == open_requests, (
            f"{name}: the inbox has {inbox}, not {open_requests}"
        )
        revisits = {each.key for each in await talk.revisits()}
        if info.terminated:
            left = [*requests, *revisits]
            assert not left, f"{name} is terminated, and has {left}"
        elif self.journals[name].page.instance_status is None:  # requests expire, and revisits wait
            assert requests <= set(folded.requests), f"{name}: {requests}, not some of {set(folded.requests)}"
        elif info.status in {"idle", "requires_action", "waiting"}:
            expected = set(folded.requests)
            own = {each for each, seq in folded.requests.items() if seq > self.journals[name].inherited} - folded.unsure
            complete = self.journals[name].is_whole
            plain = self.journals[name].is_plain
            assert (
                expected - folded.unsure <= requests <= expected
                or (not complete and requests >= own)
                or (not plain and own <= requests <= expected)
            ), f"{name}: {requests}, not {expected}"
            assert not revisits, f"{name} is at rest, and has the revisits {revisits}"
            left = [key for key, each in folded.revisits.items() if each.dropped_at is None]
            used_up = any(
                each.outcome == "max_cycles" for other in self.folded.values() for each in other.ended.values()
            )
            assert not left or used_up or "/" in name, f"{name}: the revisits {left} are gone"

    async def _usage(self, name: str) -> None:
        journal = self.journals[name]
        if any(each.lineage not in {None, "fork"} for each in journal.lineage):
            return
        spent = [fields(each).get("usage", {}).get("tokens", 0) for each in journal.entries]
        chat = self.folded[name].chat
        expected = sum(spent) if journal.is_whole else chat.tokens if chat and journal.own.lineage is None else None
        found = (await self.talk(name).usage()).get("tokens", 0)
        assert expected is None or found == expected, f"{name} has used {found} tokens, not {expected}"

    # -- parents and children

    def _delegations(self, name: str) -> None:
        """No parent waits for a child that waits for nothing."""
        if self.infos[name].status == "terminated":
            return
        left = self.folded[name].runs
        assert not left, f"{name} waits for {left}, which have ended"
        for delegation, child in self.folded[name].delegations.items():
            assert self._has_reason(child, {name}), f"{name} waits for {delegation} of {child}, {self.infos.get(child)}"

    def _has_reason(self, child: str, path: set[str]) -> bool:
        if self._was(child, "remove", "forget"):  # a missing child cannot notify the parent
            return True
        info = self.infos.get(child)
        if info is None or child in path:
            return False
        if info.status == "requires_action":
            return True
        others = self.folded[child].delegations.values()
        return info.status in {"idle", "waiting"} and any(self._has_reason(each, path | {child}) for each in others)

    def _results(self, name: str) -> None:
        """A parent was given the result that the child has produced."""
        for event in self.folded[name].ended.values():
            child = self.folded.get(event.child)
            if event.outcome in {"completed", "max_cycles"} and child is not None and child.results:
                made = self.journals[event.child]
                begun = [each.seq for each in made.entries if each.event_id == f"delegation/{event.delegation}"]
                found = [each for each in child.results if begun and each.processed >= begun[0]]
                if not self._was(event.child, "reset", "remove"):  # which begin to count again
                    found = found[: event.cycles]
                if event.outcome == "completed" and not self._has_removed_below(event.child):
                    found = [each for each in found if each.may_end]
                is_known = begun and made.is_whole
                values = [each.value for each in found]
                assert not is_known or event.result in values, f"{name} was given {event}, not {values}"

    def _made(self, name: str) -> None:
        """What its wakes have made of it is there, and no later wake has made it."""
        for new_id, what in self.folded[name].made.items():
            if self._was(new_id, *REMOVING):
                continue
            assert new_id in self.journals, f"{name} has made {new_id}, by {what}, which is not there"
            assert new_id not in self.folded[name].made_again, f"{name} has made {new_id}, by {what}, twice"
            lineage = self.journals[new_id].own.lineage
            assert lineage == what, f"{name} has made {new_id}, by {what}, and it says {lineage}"

    def _was(self, name: str, *done: Do) -> bool:
        """Whether a client or an operator has tried this about a conversation."""
        return any(act.name == name and act.op.do in done for act in self.played.acts)

    def _has_removed_below(self, name: str) -> bool:
        """Children, or theirs, may have been removed: what was given to these has ended."""
        return any(act.name.startswith(f"{name}/") and act.op.do in REMOVING for act in self.played.acts)

    # -- clients

    def _here(self, act: Act) -> Journal | None:
        """The journal to which an act has sent, if it is still there."""
        journal = self.journals.get(act.name)
        number = None if act.seq is None else act.seq.journal
        return journal if journal and number and number.journal_id == journal.page.journal_id else None

    def _sent(self, act: Act) -> None:
        """Each accepted event is in the journal, once. One of a handler for its own conversation is refused before
        it is sent.
        """
        first = act.repeats
        if first is not None and first.seq is not None and first.seq.journal and not self.has_pruned:
            if isinstance(act.error, EventIdConflict):
                assert act.op.do == "differ", f"{_shown(act)} was refused"
            elif act.seq is not None and act.seq.journal == first.seq.journal:
                assert act.op.do == "repeat", f"{_shown(act)} was accepted"
                assert act.seq == first.seq, f"{_shown(act)} is entry {act.seq}, not {first.seq}"
        if isinstance(act.error, WakeMisuse) and act.seq is None and act.name in self.journals:
            sent = [each.seq for each in self.journals[act.name].entries if each.event_id == act.event_id]
            assert not sent, f"{_shown(act)} was refused, and is entry {sent}"
        journal = self._here(act)
        if journal is None or act.seq is None or act.seq < journal.page.first_seq:
            return
        (entry,) = [each for each in journal.entries if each.seq == act.seq]
        assert (entry.event_id, entry.is_input) == (act.event_id, True), f"{_shown(act)}: entry {entry}"
        if act.event is not None:
            assert fields(entry) == from_json(act.event.model_dump_json()), f"{_shown(act)}: entry {entry}"

    def _reply(self, act: Act) -> None:
        """The reply is what the wake has written that has processed the event."""
        journal = self._here(act)
        if journal is None or act.seq is None:
            return
        if (reply := act.reply) is not None:
            wakes = [each for each in journal.attempts if each.wake_id == reply.wake_id and each.is_ok]
            if not wakes:
                assert not journal.is_whole, f"{_shown(act)}: no wake is {reply.wake_id}"
                return
            (wake,) = wakes
            assert wake.row is not None
            assert wake.row.base < act.seq <= wake.row.processed, f"{_shown(act)}: the reply comes from another wake"
            made = [each for each in reply.events if not each.kind.startswith("user.")]  # answers that have expired
            expected = journal.events_of(reply.wake_id)
            left = made[len(made) - len(expected) :] if not journal.is_whole else made  # retention cuts the first ones
            assert left == expected, f"{_shown(act)}: {made}, not {expected}"
            for each in act.again:
                assert each == reply, f"{_shown(act)}, asked again: {each}, not {reply}"
        if isinstance(act.error, WakeFailed):
            failed = [each for each in journal.ended if not each.is_ok and each.read >= act.seq]
            assert failed or not journal.is_whole, f"{_shown(act)} has failed, and no wake has"

    async def _ended(self, act: Act) -> None:
        """A terminated or deleted conversation does not come back."""
        if act.error is not None or act.op.do not in {"terminate", "delete"}:
            return
        info = self.infos.get(act.name)
        if act.op.do == "terminate":
            deleted = self._was(act.name, *REMOVING)
            # Records go with their descendants.
            above = [each.name for each in self.played.acts if each.op.do in REMOVING]
            deleted |= any(act.name.startswith(f"{each}/") for each in above)
            assert info is not None or deleted, f"{_shown(act)} is gone"
            assert deleted or (info is not None and info.terminated), f"{_shown(act)} goes on: {info}"
        elif not self._may_come_back(act):
            assert info is None, f"{_shown(act)} is there again: {info}"
            left = await self.client.session_store.load(act.name)
            assert left is None, f"{_shown(act)} has left its state"

    def _may_come_back(self, act: Act) -> bool:
        """Another call may have begun it again, or a wake of its parent."""
        assert act.ended is not None
        others = [each for each in self.acts if each is not act and (each.ended is None or each.ended > act.began)]
        return "/" in act.name or "~" in act.name or any(each.name == act.name for each in others)

    # -- feeds

    async def _feed(self, feed: Feed) -> None:
        """Every entry once, in order; what was streamed is retracted before its entries."""
        entries = [item for item in feed.items if isinstance(item, JournalEntry)]
        numbers = [each.seq for each in entries]
        if not numbers:
            return
        where = f"the feed of {feed.name}"
        assert numbers == [*range(numbers[0], numbers[-1] + 1)], f"{where} has the entries {numbers}"
        assert numbers[0] == 1 or self.has_pruned, f"{where} begins with {numbers[0]}"
        _check_stream(where, feed.items)
        journal = self.journals.get(feed.name)
        at = str(feed.position)
        timeline = self.client.journals.timeline
        if journal is None or f"@{journal.page.journal_id:x}-{timeline}" not in at:  # or it is of before a failover
            return
        stored = {each.seq: each.payload for each in journal.entries}
        for each in entries:
            assert stored.get(each.seq, each.payload) == each.payload, f"{where} has {each}, not {stored[each.seq]}"
        if numbers[-1] + 1 < journal.page.first_seq:
            return
        async with self.talk(feed.name).events(after=at) as rest:
            found = [each.seq async for each in rest if isinstance(each, JournalEntry)]
        expected = [*range(numbers[-1] + 1, journal.page.last_seq + 1)]
        assert found == expected or self.has_pruned, f"{where} goes on from {at} with {found}, not {expected}"


def _check_stream(where: str, items: Sequence[object]) -> None:
    shown: Streamed | None = None
    replaced: Retracted | None = None
    seen: set[str | None] = set()  # wakes with entries: a part replaces what was streamed, and the numbers go on
    for item in items:
        match item:
            case Streamed():
                same = shown is not None and (shown.wake_id, shown.attempt) == (item.wake_id, item.attempt)
                assert same or shown is None, f"{where}: {item} comes before the retraction of {shown}"
                goes_on = shown is None and item.wake_id in seen
                assert goes_on or item.number == (shown.number + 1 if shown else 1), (
                    f"{where}: {item} is behind {shown}"
                )
                shown = item
            case Retracted():
                assert shown is not None, f"{where}: {item} retracts nothing"
                assert (shown.wake_id, shown.attempt) == (item.wake_id, item.attempt), f"{where}: {item} of {shown}"
                shown, replaced = None, item if item.replaced else None
            case JournalEntry():
                assert shown is None or item.wake_id != shown.wake_id, f"{where}: {item} comes before a retraction"
                if replaced is not None:
                    assert item.wake_id == replaced.wake_id, f"{where}: {item} is not what replaces {replaced}"
                replaced = None
                seen.add(item.wake_id)


def _shown(act: Act) -> str:
    return f"{act.op.do} {act.event_id} of {act.name}"
