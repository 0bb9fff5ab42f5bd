"""Verbs of the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from affinity.audit.entries import AuditEntry, AuditFilter, NewAuditEntry
from affinity.provider.contract import ProviderConnection
from affinity.provider.parts import check_part, missing_verbs


class AuditProvider(ProviderConnection, Protocol):
    """The verbs on the audit log.

    While a user is stated for the database (`affinity.audit.acting.Acting`), each verb that is an action has its
    entries in its own transaction: what `Acting.entries` gives for its result, where something took effect.
    `Acting.committed` is called behind it. Where the result comes with the end of the transaction, `Acting.expected`
    gives the entries before it. Without a user nothing more is read or written.

    `WorkerProvider.sweep` removes the oldest entries, those older than ``audit`` in `Retention.guests`.
    """

    async def write_audit(self, entries: Sequence[NewAuditEntry]) -> None:
        """Write entries in one transaction, with the database's time and role. For what was refused: an action that
        takes effect writes its entries in its own transaction.
        """
        ...

    async def list_audit(self, where: AuditFilter, limit: int) -> Sequence[AuditEntry]:
        """List one page of entries, newest first. An entry may be committed a moment after a later one."""
        ...


def audit_of(provider: ProviderConnection) -> AuditProvider:
    """Return the provider as one that keeps an audit log.

    Raises:
        InvalidOptions: it keeps none.
    """
    check_part(provider, AuditProvider)
    return cast(AuditProvider, provider)


def keeps_audit(provider: ProviderConnection) -> bool:
    """Return whether the provider keeps an audit log."""
    return not missing_verbs(provider, AuditProvider)
