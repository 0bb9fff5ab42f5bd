"""Limits on SQLite. One write transaction runs at a time, so triggers count the slots that are freed.

The SQL of each module is in the ``.sql`` file beside it:

    admission           admits work: all slots of its limits, or none
    passing             new work that has them with the commit which queues it
    keys, lines         their state, in the memory of a transaction
    changes             limits as code declares them and people change them; closings, charges
    returning           slots that come back without their worker
    listing             what people see
"""

from __future__ import annotations

from typing import Final

from affinity.flow.store.sqlite import admission, changes, listing, passing, returning
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.sqlite.parts import SqlitePart
from affinity.provider.sqlite.verbs import acts, looks_first, reads, writes


def _due(tx: Tx) -> float | None:
    """Return the seconds until there is something to do. While work has slots, these may have to be returned."""
    seconds = admission.next_admission(tx)
    return returning.RETURN_SECONDS if seconds is None and returning.may_return(tx) else seconds


def _next_due(tx: Tx) -> float | None:
    seconds = admission.next_admission(tx, without_untaken=True)
    return None if seconds is None or seconds <= 0 else tx.now + seconds


PART: Final = SqlitePart(
    verbs={
        "declare_limits": writes(changes.declare),
        "admit": looks_first(admission.admit),
        "close_limits": writes(changes.close),
        "charge_limits": writes(changes.charge),
        "return_slots": looks_first(returning.return_slots),
        "list_limits": reads(listing.list_limits),
        "list_limit_keys": reads(listing.list_keys),
        "change_limits": acts("change_limits", "limit", changes.change),
        "get_limit_waits": reads(listing.get_waits),
    },
    due=_due,
    next_due=_next_due,
    remove_old=returning.remove_unused,
    gates=passing.CommitGates,
)
