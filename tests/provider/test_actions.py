"""Actions: each guest has its share in the statement, or the transaction, of a verb that users call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from affinity.actions import ActionCall, Actors, stated
from affinity.errors import QuotaExceeded
from affinity.provider import open_provider
from affinity.provider.contract import Quotas
from affinity.provider.postgres import PostgresProvider
from affinity.provider.postgres import actions as postgres_actions
from affinity.provider.postgres.operations import ActionShare
from affinity.provider.postgres.parts import PostgresPart
from affinity.provider.postgres.parts import parts as postgres_parts
from affinity.provider.sqlite import actions as sqlite_actions
from affinity.provider.sqlite.driver.transaction import Tx
from affinity.provider.sqlite.parts import SqlitePart
from affinity.provider.sqlite.parts import parts as sqlite_parts
from affinity_conformance.providers.audit.fault_verbs import acting, entries_of
from affinity_conformance.providers.builders import new_instance

pytestmark = pytest.mark.anyio

COUNT: Final = """
SELECT set_config('guest.effects', concat_ws(', ', nullif(current_setting('guest.effects', true), ''),
    count(*) || %(guest_unit)s), false) FROM action_effects"""

CREATED: Final = ("create_instance", "instance", ["i", "j", "i"])


@dataclass
class Guest:
    """A guest beside the audit log, which notes the calls and results that it is given."""

    calls: list[tuple[str, str, list[str]]] = field(default_factory=list)
    results: list[object] = field(default_factory=list)
    committed: int = 0

    def share_on_postgres(self, _: Actors, call: ActionCall) -> ActionShare:
        """Add the number of effects to a setting of the connection."""
        self.calls.append((call.verb, call.kind, [*call.targets]))
        return ActionShare(COUNT, {"guest_unit": " effects"}, self.note)

    async def note(self, result: object) -> None:
        self.results.append(result)

    def share_on_sqlite(self, _: Actors, call: ActionCall) -> Callable[[Tx, object], Callable[[], None]]:
        self.calls.append((call.verb, call.kind, [*call.targets]))
        return self.join

    def join(self, _: Tx, result: object) -> Callable[[], None]:
        self.results.append(result)
        return self.count

    def count(self) -> None:
        self.committed += 1


@contextmanager
def joined(monkeypatch: pytest.MonkeyPatch) -> Iterator[Guest]:
    """Add the guest to those of both providers."""
    guest = Guest()
    of_postgres = PostgresPart(verbs={}, rights=(), share_in_action=guest.share_on_postgres)
    of_sqlite = SqlitePart(verbs={}, share_in_action=guest.share_on_sqlite)
    none = SqlitePart(verbs={}, share_in_action=lambda _, __: None)  # the actors are not its own
    with monkeypatch.context() as patch:
        patch.setattr(postgres_actions, "parts", lambda: {**postgres_parts(), "guest": of_postgres})
        patch.setattr(sqlite_actions, "parts", lambda: {**sqlite_parts(), "guest": of_sqlite, "other": none})
        yield guest


async def do(provider: Any) -> None:
    """An action with effects, and one that is refused."""
    await provider.create_instance([new_instance("without")])
    with stated(acting(provider)):
        assert await provider.create_instance([new_instance(name) for name in ("i", "j", "i")]) == [True, True, False]
        await provider.set_quotas(Quotas(instances=1))
        with pytest.raises(QuotaExceeded):
            await provider.create_instance([new_instance("k")])
    assert await entries_of(provider, "j") == [("create_instance", "done", True)]


async def test_each_guest_has_its_share_in_a_statement(postgres_migrated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with aclosing(await PostgresProvider.open(postgres_migrated, one_connection=True)) as provider:
        with joined(monkeypatch) as guest:
            await do(provider)
        assert guest.calls[0] == CREATED
        assert guest.results == [[True, True, False], None]
        ((effects,),) = await provider.connections.rows.run("SELECT current_setting('guest.effects')")
        assert effects == "2 effects, 1 effects, 0 effects"


async def test_each_guest_has_its_share_in_a_transaction(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with aclosing(await open_provider(sqlite_url)) as provider:
        with joined(monkeypatch) as guest:
            await do(provider)
        assert guest.calls[0] == CREATED
        assert guest.results == [[True, True, False], None]
        assert guest.committed == 2
