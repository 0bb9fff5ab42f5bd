"""Detection of a database that is another one, or has lost commits, since a worker last saw it.

After a failover to a standby that lagged, a restored backup, or a schema that was dropped and created again, rows that
this process has seen are gone, and their ids will be issued again. So each database has a random *token*, which a
provider reads at each connection. The first connection that finds another database (in PostgreSQL: another server,
timeline, database or table), or one that has not *reached* the point at which the caller saw it, replaces the token.
With the token all ids jump forward, past all that were ever issued; every worker lease ends; and every session gets a
new epoch.
"""

from __future__ import annotations

import uuid

from affinity.errors import DatabaseChanged


class Timeline:
    """The history of a database that one incarnation of a worker follows. All its providers share it.

    Args:
        before: of the incarnation before: the first connection checks whether the database is behind it.
    """

    def __init__(self, before: Timeline | None = None) -> None:
        self.token: str | None = before.token if before else None
        self.reached: int = before.reached if before else 0
        self._is_bound = False

    def check(self, token: str, reached: int) -> None:
        """Compare the database of a connection with the one seen before; the first call sets it.

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


class SeenTimeline:
    """The timeline that the calls of a client find: it changes, where the `Timeline` of a worker refuses.

    Where the database is behind what was seen, only a worker begins the new timeline. Until one has, this client has a
    name of its own for it.
    """

    def __init__(self) -> None:
        self.token: str | None = None
        self.reached: int = 0
        self._given: str | None = None

    def note(self, token: str, reached: int | None, before: int) -> None:
        """Take the answer of a database.

        Args:
            token: of the database.
            reached: as for `Timeline.check`; None: a standby, which does not say it.
            before: `reached` of this object when the database was asked.
        """
        is_behind = reached is not None and reached < before
        if token != self._given or is_behind:
            self.token = token if token != self._given else uuid.uuid4().hex
            self._given, self.reached = token, 0
        self.reached = max(self.reached, reached or 0)
