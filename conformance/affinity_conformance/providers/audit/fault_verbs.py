"""The audit log under faults: a verb with a user, which has its entry exactly when it has taken effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from affinity.actions import stated
from affinity.audit.acting import Acting
from affinity.audit.entries import AuditFilter, NewAuditEntry
from affinity.audit.store.contract import audit_of
from affinity.provider.contract import Provider
from affinity_conformance.providers.fault_fixtures import Attempt, FaultFixtures, FaultPart, same

USER: Final = "ann"


def acting(provider: Provider) -> Acting:
    """A user without an action: each verb has entries of its own name."""
    return Acting(USER, "suite", audit_of(provider))


async def entries_of(provider: Provider, target: str) -> list[tuple[str, str, bool]]:
    """Verb, outcome, and whether it succeeded, of the entries of a target, oldest first."""
    found = await audit_of(provider).list_audit(AuditFilter(user=USER, target=target), 100)
    return [(entry.action, entry.outcome, entry.succeeded) for entry in reversed(found)]


async def resume_with_user(fixtures: FaultFixtures) -> Attempt:
    """Resuming an instance by a user: one entry says that it was resumed, however often it is repeated."""
    instance_id = await fixtures.suspended()

    async def call() -> Any:
        with stated(acting(fixtures.provider)):
            return await fixtures.provider.resume_instance([instance_id])

    async def check(result: Sequence[str]) -> None:
        assert list(result) == ["resumed"] or (attempt.unknown and list(result) == ["not_suspended"])
        entries = await entries_of(fixtures.clean.provider, instance_id)
        assert [entry for entry in entries if entry[2]] == [("resume_instance", "resumed", True)]
        await fixtures.assert_continues(instance_id)

    attempt = Attempt(call, check)
    return attempt


async def write_audit(fixtures: FaultFixtures) -> Attempt:
    """An entry of its own; one whose reply was lost may be there twice."""
    entry = NewAuditEntry(
        user=USER,
        source="suite",
        action="cancel",
        kind="instance",
        target=fixtures.name("i"),
        outcome="UnknownInstance",
        succeeded=False,
        details="{}",
    )

    async def check(_: object) -> None:
        found = await entries_of(fixtures.clean.provider, entry.target)
        assert set(found) == {("cancel", "UnknownInstance", False)}
        assert len(found) == 1 or attempt.unknown

    attempt = Attempt(lambda: audit_of(fixtures.provider).write_audit([entry]), check)
    return attempt


async def list_audit(fixtures: FaultFixtures) -> Attempt:
    clean = fixtures.clean.provider
    with stated(acting(clean)):
        await clean.suspend_rebalancing(suspended=False)
    return same(fixtures, lambda provider: audit_of(provider).list_audit(AuditFilter(), 3))


AUDIT: Final = FaultPart(
    verbs={prepare.__name__: prepare for prepare in (resume_with_user, write_audit, list_audit)},
)
