"""The audit log: entries in the transactions of the verbs, listing and retention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from affinity.actions import stated, stated_together
from affinity.audit.acting import Acting
from affinity.audit.entries import AuditFilter, NewAuditEntry
from affinity.audit.store.contract import audit_of
from affinity.conversation.store.contract import journals_of
from affinity.errors import ProviderError, QuotaExceeded
from affinity.limits import MIN_AUDIT_RETENTION_SECONDS
from affinity.provider.contract import NewMessage, PlannedMove, Quotas, Retention
from affinity_conformance.providers.audit.fault_verbs import acting, entries_of
from affinity_conformance.providers.base import Rules
from affinity_conformance.providers.builders import new_instance, state
from affinity_conformance.providers.cluster import Cluster
from affinity_conformance.providers.conversation.driver import new_input


class AuditRules(Rules):
    """`affinity.audit`, as the provider keeps it; `write_audit`, `list_audit`, and the share of a sweep."""

    async def test_what_a_user_does_has_an_entry(self, cluster: Cluster) -> None:
        """Each target has an entry with its outcome; a call without a user leaves no entry (contract: write_audit)."""
        a = await cluster.worker("a")
        provider = a.provider
        await a.suspend(await a.own("i"))
        await cluster.use(a, "s")
        with stated(acting(provider)):
            await provider.resume_instance(["i", "none"])
            await provider.send_message([NewMessage(instance_id="i", payload="m")])
            await provider.release_session(["s"])
            await provider.move_session([PlannedMove(session_id="s", to="a", within=60)])
            await provider.set_drain_wanted("a", wanted=True)
            await provider.states.save(state("r"))
            await provider.states.delete(["r", "t"])
            await provider.suspend_rebalancing(suspended=True)
            await provider.delete_instance(["i"], force=True)
        await provider.create_instance([new_instance("other")])
        assert await entries_of(provider, "i") == [
            ("resume_instance", "resumed", True),
            ("send_message", "delivered", True),
            ("delete_instance", "deleted", True),
        ]
        assert await entries_of(provider, "none") == [("resume_instance", "unknown", False)]
        assert await entries_of(provider, "s") == [
            ("release_session", "released", True),
            ("move_session", "not_held", False),
        ]
        assert await entries_of(provider, "a") == [("set_drain_wanted", "done", True)]
        assert await entries_of(provider, "r") == [("save_record", "done", True), ("delete_record", "done", True)]
        assert await entries_of(provider, "t") == [("delete_record", "unchanged", False)]
        assert await entries_of(provider, "") == [("suspend_rebalancing", "done", True)]
        assert len(await audit_of(provider).list_audit(AuditFilter(), 100)) == 11

    async def test_calls_of_several_users_are_one_call(self, cluster: Cluster) -> None:
        """Each target has the entry of its own user and action; a target without a user has none (contract:
        append_journal, send_message).
        """
        a = await cluster.worker("a")
        provider = a.provider
        await a.own("i")
        ann, bob = (Acting(user, "suite", audit_of(provider)) for user in ("ann", "bob"))
        messages = [NewMessage(instance_id=name, payload="m") for name in ("i", "none", "i", "i")]
        with stated_together([[ann], [bob], [], [ann, bob]]):
            assert await provider.send_message(messages) == ["delivered", "unknown", "delivered", "delivered"]
        appends = [new_input(name, event_id=f"e-{name}") for name in ("c", "d", "e", "f")]
        for _ in range(2):
            with stated_together([[], [bob], [ann], [ann]]):
                await journals_of(provider).append_journal(appends)
        found = [
            (entry.user, entry.action, entry.target, entry.outcome, entry.succeeded)
            for entry in await audit_of(provider).list_audit(AuditFilter(), 100)
        ]
        assert sorted(found) == [
            ("ann", "append_journal", "e", "appended", True),
            ("ann", "append_journal", "e", "repeated", False),
            ("ann", "append_journal", "f", "appended", True),
            ("ann", "append_journal", "f", "repeated", False),
            ("ann", "send_message", "i", "delivered", True),
            ("bob", "append_journal", "d", "appended", True),
            ("bob", "append_journal", "d", "repeated", False),
            ("bob", "send_message", "i", "delivered", True),
            ("bob", "send_message", "none", "unknown", False),
        ]

    async def test_what_is_read_has_no_entry(self, cluster: Cluster) -> None:
        """Reads, and trials of removals, are not recorded (contract: write_audit)."""
        provider = (await cluster.worker("a")).provider
        with stated(acting(provider)):
            await provider.get_instance(["i"])
            await provider.list_workers()
            await provider.prune_instances(frozenset({"completed"}), 0.0, dry_run=True)
            await provider.states.delete(["s"], dry_run=True)
            await journals_of(provider).read_journal([])
        assert await audit_of(provider).list_audit(AuditFilter(), 100) == []

    @pytest.mark.parametrize("is_refused", [False, True])
    async def test_what_is_undone_has_no_entry(self, cluster: Cluster, is_refused: bool) -> None:
        """A verb that raises, and one whose entry cannot be written, leave neither effect nor entry (contract:
        write_audit).
        """
        provider = (await cluster.worker("a")).provider
        nobody: Any = None  # no store takes it
        user = acting(provider) if is_refused else Acting(nobody, "suite", audit_of(provider))
        await provider.set_quotas(Quotas(instances=1 if is_refused else None))
        with stated(user), pytest.raises(QuotaExceeded if is_refused else ProviderError):
            await provider.create_instance([new_instance("i")])
        assert await provider.get_instance(["i"]) == [None]
        assert await audit_of(provider).list_audit(AuditFilter(), 100) == []
        await provider.set_quotas(Quotas())
        with stated(acting(provider)):
            assert await provider.create_instance([new_instance("i")]) == [True]
        assert await entries_of(provider, "i") == [("create_instance", "done", True)]

    async def test_entries_are_listed_by_filter_and_page(self, cluster: Cluster) -> None:
        """Newest first, by each condition, and page by page (contract: list_audit)."""
        provider = (await cluster.worker("a")).provider
        for n in range(6):
            await audit_of(provider).write_audit([_entry(n)])
            await cluster.advance(1)
        await audit_of(provider).write_audit([_entry(6), _entry(7)])  # at one time
        every = await audit_of(provider).list_audit(AuditFilter(), 100)
        assert [entry.target for entry in every] == [f"t{n}" for n in reversed(range(8))]
        assert every[0].at == every[1].at
        assert every[-1].details == {"reason": "né"}

        async def found(**where: Any) -> Sequence[str]:
            return [entry.target for entry in await audit_of(provider).list_audit(AuditFilter(**where), 100)]

        assert await found(user="u1") == ["t7", "t5", "t3", "t1"]
        assert await found(user="u1", action="a1") == ["t7", "t1"]
        assert await found(source="s0", succeeded=True) == ["t6", "t4", "t2", "t0"]
        assert await found(target="t3") == ["t3"]
        assert await found(succeeded=False) == ["t7", "t5", "t3", "t1"]
        assert await found(since=every[3].at, until=every[1].at) == ["t5", "t4"]
        assert await found(user="none") == []
        paged: list[str] = []
        after = None
        while page := await audit_of(provider).list_audit(AuditFilter(after=after), 3):
            paged += [entry.target for entry in page]
            after = page[-1].at, page[-1].entry_id
        assert paged == [entry.target for entry in every]

    async def test_old_entries_are_swept(self, cluster: Cluster) -> None:
        """A sweep removes entries that are older than the retention, and without one none (contract: AuditProvider)."""
        provider = (await cluster.worker("a")).provider
        await audit_of(provider).write_audit([_entry(0)])
        await cluster.advance(MIN_AUDIT_RETENTION_SECONDS)
        await audit_of(provider).write_audit([_entry(1)])
        await cluster.advance(10)
        assert (await cluster.sweep()).removed == {}
        keep = Retention(guests={"audit": MIN_AUDIT_RETENTION_SECONDS})
        assert (await cluster.sweep(retention=keep)).removed == {"audit": 1}
        assert [entry.target for entry in await audit_of(provider).list_audit(AuditFilter(), 100)] == ["t1"]


def _entry(n: int) -> NewAuditEntry:
    return NewAuditEntry(
        user=f"u{n % 2}",
        source=f"s{n % 2}",
        action=f"a{n % 3}",
        kind="instance",
        target=f"t{n}",
        outcome="done",
        succeeded=not n % 2,
        details='{"reason": "né"}',
    )
