"""Migrations of session state: from a record's schema version to the code's, by the shortest chain of steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from affinity.errors import (
    InvalidOptions,
    SessionMigrationAmbiguous,
    SessionMigrationFailed,
    SessionMigrationMissing,
    problem_of,
)
from affinity.limits import check_integer
from affinity.tasks import call_here
from affinity.user_code import check_function, is_rerun

Migrate: TypeAlias = Callable[[Any], Awaitable[Any] | Any]
"""Takes the plain form of a state (a dict, for JSON objects) and returns the plain form of the next version; sync or
async.
"""

ANY_SESSION: Final = "*"
"""In place of a session's id in errors that concern all sessions."""


@dataclass(frozen=True, slots=True)
class _MigrationStep:
    from_version: int
    to_version: int
    migrate: Migrate

    def __str__(self) -> str:
        return f"{self.from_version} -> {self.to_version}"


class Migrations:
    """Registered steps between schema versions. A step may lead back, so that older code can read newer records."""

    def __init__(self) -> None:
        self._from: dict[int, dict[int, _MigrationStep]] = {}

    def register(self, from_version: int, to_version: int, migrate: Migrate) -> None:
        """Add one step.

        Raises:
            SessionMigrationAmbiguous: there is one between these versions.
            InvalidOptions: the versions are the same, or one of them is no integer from 0 to `limits.MAX_INTEGER`; or
                the function takes other arguments.
        """
        for version in (from_version, to_version):
            check_integer(version, "the schema version of a migration")
        check_function(migrate, f"the migration from {from_version} to {to_version}", "state")
        if from_version == to_version:
            raise InvalidOptions(f"a migration from {from_version!r} to {to_version!r} leads nowhere")
        steps = self._from.setdefault(from_version, {})
        if to_version in steps and not is_rerun(steps[to_version].migrate, migrate):
            message = f"the migration from {from_version} to {to_version} is registered twice"
            raise SessionMigrationAmbiguous(ANY_SESSION, from_version, to_version, message)
        steps[to_version] = _MigrationStep(from_version, to_version, migrate)

    def leading_to(self, goal: int) -> frozenset[int]:
        """The versions from which a chain leads to ``goal``, itself among them."""
        found = {goal}
        while more := {start for start, steps in self._from.items() if start not in found and found & steps.keys()}:
            found |= more
        return frozenset(found)

    def check(self, session_id: str, from_version: int, to_version: int) -> None:
        """Find the chain, without running it.

        Raises:
            SessionMigrationMissing, SessionMigrationAmbiguous: as `apply`.
        """
        self._chain(session_id, from_version, to_version)

    def check_all(self, to_version: int) -> None:
        """Find ambiguities before a record is loaded.

        Raises:
            SessionMigrationAmbiguous: from some version several chains to this one are the shortest.
        """
        for from_version in sorted(self.leading_to(to_version)):
            self._chain(ANY_SESSION, from_version, to_version)

    async def apply(self, session_id: str, plain: Any, from_version: int, to_version: int) -> Any:
        """The plain form in the other version; each step gets what the one before it returned.

        Raises:
            SessionMigrationMissing: no chain leads there.
            SessionMigrationAmbiguous: several chains are the shortest.
            SessionMigrationFailed: a step raised; later steps were not run.
        """
        for step in self._chain(session_id, from_version, to_version):
            try:
                plain = await call_here(step.migrate, plain)
                _refuse_none(plain)
            except Exception as error:
                message = problem_of(error)
                raise SessionMigrationFailed(session_id, step.from_version, step.to_version, message) from error
        return plain

    def _chain(self, session_id: str, start: int, goal: int) -> list[_MigrationStep]:
        """The shortest chain, found breadth first; ``chains`` counts the equally short chains to each version."""
        chains: dict[int, int] = {start: 1}
        arrived: dict[int, _MigrationStep] = {}  # the step by which each version was first reached
        level = [start]
        while level and goal not in chains:
            following: dict[int, int] = {}
            for version in level:
                for step in self._from.get(version, {}).values():
                    if step.to_version not in chains:
                        following[step.to_version] = following.get(step.to_version, 0) + chains[version]
                        arrived.setdefault(step.to_version, step)
            chains.update(following)
            level = list(following)
        if goal not in chains:
            raise self._missing(session_id, start, goal, chains)
        if chains[goal] > 1:
            message = f"{chains[goal]} chains of migrations lead from {start} to {goal}, equally short; remove a step"
            raise SessionMigrationAmbiguous(session_id, start, goal, message)
        chain: list[_MigrationStep] = []
        while goal != start:
            chain.insert(0, arrived[goal])
            goal = chain[0].from_version
        return chain

    def _missing(self, session_id: str, start: int, goal: int, reached: dict[int, int]) -> SessionMigrationMissing:
        steps = [step for group in self._from.values() for step in group.values()]
        registered = ", ".join(map(str, steps)) or "none"
        ends = ", ".join(str(version) for version in sorted(reached))
        description = f"registered: {registered}; from {start} they reach {ends}"
        return SessionMigrationMissing(session_id, start, goal, len(steps), description)


def _refuse_none(plain: Any) -> None:
    if plain is None:
        raise TypeError("it returned None: a migration returns the migrated state")
