"""Actions: verbs that users call. While an actor is stated, guests add their shares to the statement of a verb.

One statement does both, so that the caller holds no lock while it processes the result or is paused.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from copy import copy
from functools import cache, wraps
from typing import Any, Concatenate, Final, LiteralString, ParamSpec, TypeVar

from affinity.actions import ActionCall, Actors, actors_on, targets_of
from affinity.provider.postgres.driver.wire import Params
from affinity.provider.postgres.operations import ActionShare, Database
from affinity.provider.postgres.parts import parts

P = ParamSpec("P")
T = TypeVar("T")

Verb = Callable[Concatenate[Database, P], Coroutine[Any, Any, T]]


def acts(kind: str, verb: Verb[P, T]) -> Verb[P, T]:
    """Return the verb as an action; ``kind``: of its targets. The verb makes its statement with `with_shares`."""

    @wraps(verb)
    async def call(db: Database, /, *args: P.args, **kwargs: P.kwargs) -> T:
        actors = actors_on(db.connections.timeline.database)
        if actors is None or kwargs.get("dry_run"):
            return await verb(db, *args, **kwargs)
        inner = copy(db)
        inner.shares = shares_of(actors, ActionCall(verb.__name__, kind, targets_of(args)))
        result = await verb(inner, *args, **kwargs)
        await note_result(inner.shares, result)
        return result

    return call


def shares_of(actors: Actors, call: ActionCall) -> Sequence[ActionShare]:
    """Return the shares that guests add to a call of an action."""
    asked = [part.share_in_action for part in parts().values() if part.share_in_action is not None]
    return [share for share_in in asked if (share := share_in(actors, call)) is not None]


async def note_result(shares: Sequence[ActionShare], result: object) -> None:
    """Pass the result of an action to the guests that had a share in it."""
    for share in shares:
        await share.note(result)


def with_shares(
    shares: Sequence[ActionShare], statement: LiteralString, effects: LiteralString, params: Params
) -> tuple[LiteralString, Params]:
    """Return the statement of an action, with its parameters, extended by the shares of guests.

    Args:
        shares: `Database.shares`; if empty, the statement stays as it is.
        statement: any without a WITH; or one that ends with ``SELECT * FROM result``.
        effects: a query of ``result``, the rows of the statement: the place of each target on which it has taken
            effect, counted from 1, and the outcome. There is a row for each effect, and each effect has a row in
            ``result``.
        params: of the statement and of the query.
    """
    if not shares:
        return statement, params
    for share in shares:
        params = {**params, **share.params}
    return _with_shares(statement, effects, tuple(share.query for share in shares)), params


_END: Final = "SELECT * FROM result"


@cache
def _with_shares(statement: LiteralString, effects: LiteralString, queries: tuple[LiteralString, ...]) -> LiteralString:
    statement = statement.rstrip()
    if statement.endswith(_END):
        text = statement.removesuffix(_END).rstrip()
    else:
        text = f"WITH result AS MATERIALIZED ({statement})"
    text = f"{text}, action_effects (place, outcome) AS MATERIALIZED ({effects})"
    end: LiteralString = "SELECT r.* FROM result r"
    for number, query in enumerate(queries, 1):
        text = f"{text}, share_{number} AS MATERIALIZED ({query})"
        end = f"{end} CROSS JOIN share_{number}"
    return f"{text} {end}"
