"""Which database a worker talks to, and which line of its history: what a worker remembers is true of that one only.

A failover to a standby that lagged, a restored backup and a schema that was dropped and made again have one thing in
common: rows that this process has seen are gone, and their ids will be issued again. So each database has a random
*token*, which a provider reads at each connection. The token is replaced, once, by the first connection that finds
that the database is not the one that it was (in PostgreSQL: another server, timeline, database or table), or that it
has not *reached* the point at which the caller saw it. With the token all ids jump forward, past all that were ever
issued; every worker lease ends; and every session has a new epoch.
"""

from __future__ import annotations

from affinity.errors import DatabaseChanged


class Timeline:
    """The line of history that one incarnation of a worker follows. Its providers share it, also those of threads.

    Args:
        before: what the incarnation before followed: whether the database is behind that is found out once more.
    """

    def __init__(self, before: Timeline | None = None) -> None:
        self.token: str | None = before.token if before else None
        self.reached: int = before.reached if before else 0
        self._is_bound = False

    def check(self, token: str, reached: int) -> None:
        """Compare what a connection says with what was seen before; the first one decides what that is.

        Args:
            token: of the database.
            reached: a position in its history that only grows, and that no crash takes back.

        Raises:
            DatabaseChanged: it is another database, or another line of its history.
        """
        if token == self.token:
            self.reached = max(reached, self.reached)
        elif self._is_bound:
            raise DatabaseChanged("this is another database than before, or one that has lost what it had committed")
        else:
            self.token, self.reached = token, reached
        self._is_bound = True
