"""The calls of a connection, or of connections of one kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, LiteralString

from affinity.provider.postgres.driver.wire import Params, Row, Statement, WireProtocol

CALL_TIMEOUT: Final = 40.0
"""Seconds for one call, above the server's own statement_timeout: past it the network must be gone."""


class Calls:
    """The calls of a connection."""

    def _call(
        self,
        ask: Callable[[WireProtocol], None],
        settings: Mapping[str, str] | None = None,
        behind: Statement | None = None,
        *,
        is_short: bool = True,
    ) -> Awaitable[list[list[Row]]]:
        raise NotImplementedError

    async def run(
        self, statement: LiteralString, params: Params | None = None, *, behind: Statement | None = None
    ) -> list[Row]:
        """One prepared statement; its rows. ``behind`` is a hint: a statement that is executed after it, in a
        transaction of its own, also if the first one failed. It is not waited for, and its error is not raised.
        """
        if behind is None:
            (rows,) = await self._call(lambda protocol: protocol.execute(statement, params))
        else:
            first, hint = (statement, params or {}), behind
            (rows,) = await self._call(lambda protocol: protocol.execute_both(first, hint), behind=hint)
        return rows

    async def run_once(self, statement: LiteralString, params: Params | None = None) -> list[Row]:
        """One statement that is not prepared; its rows."""
        (rows,) = await self.simple_query(statement, params)
        return rows

    async def pipeline(self, statements: Sequence[LiteralString], params: Params) -> list[list[Row]]:
        """As `simple_query`, with prepared statements."""
        return await self._call(lambda protocol: protocol.pipeline(statements, params))

    async def simple_query(self, statements: LiteralString, params: Params | None = None) -> list[list[Row]]:
        """Several statements in one message and one transaction, each with a snapshot of its own; the rows of each.

        The server gets all of them before it begins: it never waits for us in the middle.
        """
        return await self._call(lambda protocol: protocol.simple_query(statements, params))
