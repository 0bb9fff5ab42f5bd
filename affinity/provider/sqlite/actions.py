"""Actions: verbs that users call. While an actor is stated, guests add their shares to the transaction of a verb."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from affinity.actions import ActionCall, Actors
from affinity.provider.sqlite.driver.database import Database
from affinity.provider.sqlite.driver.thread import DatabaseThread
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.sqlite.parts import ActionShare, parts

T = TypeVar("T")


async def run_action(
    writer: DatabaseThread,
    actors: Actors,
    call: ActionCall,
    work: Callable[[Tx], T],
    judge: Callable[[T], object] = lambda result: result,
) -> T:
    """Do ``work`` in one transaction with the shares of guests; these receive ``judge`` of its result."""
    shares = _shares_of(actors, call)

    def work_with_shares(tx: Tx) -> tuple[T, Sequence[Callable[[], None]]]:
        result = work(tx)
        judged = judge(result)
        return result, [share(tx, judged) for share in shares]

    result, committed = await writer.call(Database.write, work_with_shares)
    for note in committed:
        note()
    return result


def _shares_of(actors: Actors, call: ActionCall) -> Sequence[ActionShare]:
    asked = [part.share_in_action for part in parts().values() if part.share_in_action is not None]
    return [share for share_in in asked if (share := share_in(actors, call)) is not None]
