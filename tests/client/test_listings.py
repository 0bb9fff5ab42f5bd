"""One rule for all listings: read one by one, as a list, or page by page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from affinity import Client, Start
from affinity.client import Pages
from affinity.conversation import ToolConfirmation, UserMessage
from affinity.conversation.events import EventTypes
from affinity.conversation.journal import JournalWrite, NewRequest
from affinity.conversation.store.contract import journals_of
from affinity.errors import InvalidInput, UnknownInstance
from affinity.limits import MAX_PAGE
from affinity.orchestration.events import GuidCreated
from affinity.provider.contract import Provider
from affinity.session import SessionFilter
from affinity_conformance.providers.builders import state
from tests.client.conftest import Puppet
from tests.support.console_app import chats

pytestmark = pytest.mark.anyio

LISTINGS: Final[dict[str, tuple[Callable[[Client], Pages[Any]], str]]] = {
    "audit": (lambda client: client.audit(user="ann"), "list_audit"),
    "conversations": (lambda client: client.list_conversations(kind="chat"), "list_journals"),
    "history": (lambda client: client.history("i0"), "read_history"),
    "instances": (lambda client: client.list_instances(prefix="i"), "list_instances"),
    "records": (lambda client: client.session_manager.list(SessionFilter(prefix="s")), "list"),
    "requests": (lambda client: client.requests(kinds="agent.tool_confirmation"), "list_requests"),
    "requests by expiry": (lambda client: client.requests(by_expiry=True), "list_requests"),
    "sessions": (lambda client: client.sessions(), "list_sessions"),
}
"""Each with the verb of the provider, or of the store, that reads a page of it."""

ITEMS: Final = 3


async def test_ended_instances_in_the_order_of_their_ends(client: Client, puppet: Puppet) -> None:
    """And of their durations, as one page."""
    for name in ("a", "b", "c"):
        await client.start("brew", instance_id=name)
    for name in ("c", "a"):
        await puppet.end(name)
    listing = client.list_instances(sort="-ended", prefix="")
    assert [found.instance_id for found in await listing] == ["a", "c"]
    page = await client.list_instances(sort="ended").page(limit=1)
    assert ([found.instance_id for found in page.items], page.next is not None) == (["c"], True)
    assert [found.instance_id for found in (await client.list_instances(sort="ended").page(page.next)).items] == ["a"]
    longest = await client.list_instances(sort="-duration").page(limit=1)
    assert ([found.instance_id for found in longest.items], longest.next) == (["a"], None)
    with pytest.raises(InvalidInput, match="one page"):
        await client.list_instances(sort="duration").page(page.next)


@pytest.fixture
async def full(client: Client, provider: Provider, puppet: Puppet) -> Client:
    """A database in which each listing has three items."""
    with client.acting_as("ann"):
        await client.start_many([Start("brew", instance_id=f"i{n}") for n in range(ITEMS)])
    await puppet.record("i0", *[GuidCreated("g")] * (ITEMS - 1))
    for number in range(ITEMS):
        await client.session_store.save(state(f"s{number}"))
        await client.conversation(chats, f"c{number}").send(UserMessage("hi"))
        await ask(provider, puppet, f"c{number}")
    return client


async def ask(provider: Provider, puppet: Puppet, name: str) -> None:
    """Leave a request in a conversation."""
    (work,) = await journals_of(provider).get_pending([name], limit=100)
    assert work is not None
    request = ToolConfirmation(request_id="r", tool="buy", arguments={})
    await puppet.write(
        JournalWrite(
            session_id=name,
            journal_id=work.journal_id,
            base=work.processed,
            processed=1,
            wake_id="w",
            entries=[],
            requests=[NewRequest(request_id="r", kind=request.kind, payload=EventTypes().encode(request))],
            clear_stream=True,
            attempt=1,
        )
    )


class Reads:
    """Counts the calls of a verb."""

    def __init__(self, of: Any, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._verb = getattr(of, verb)
        self.count = 0
        monkeypatch.setattr(of, verb, self._call)

    async def _call(self, *args: Any, **named: Any) -> Any:
        self.count += 1
        return await self._verb(*args, **named)


@pytest.mark.parametrize("name", LISTINGS)
async def test_a_listing_is_read_in_three_ways(name: str, full: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gives the same items, with one call for each page."""
    listing, verb = LISTINGS[name]
    reads = Reads(full._provider.states if verb == "list" else full._provider, verb, monkeypatch)
    whole = await listing(full)
    assert len(whole) == ITEMS
    assert reads.count == 1
    assert [identity(item) async for item in listing(full)] == [*map(identity, whole)]
    assert reads.count == 2
    paged: list[Any] = []
    page = await listing(full).page(limit=ITEMS - 1)
    while page.items:
        paged += page.items
        if page.next is None:
            break
        page = await listing(full).page(page.next, limit=ITEMS - 1)
    assert [*map(identity, paged)] == [*map(identity, whole)]
    assert reads.count == 4


@pytest.mark.parametrize("name", LISTINGS)
async def test_what_no_page_has_is_refused(name: str, full: Client) -> None:
    listing, _ = LISTINGS[name]
    for limit in (0, MAX_PAGE + 1, True, "5"):
        with pytest.raises(InvalidInput, match="limit"):
            await listing(full).page(limit=limit)  # type: ignore[arg-type]
    if name != "sessions":  # whose cursors are ids
        for cursor in ("x", "1/2/3", "0/x", "-1/-1", f"{2**63}/1", f"1/{10**30}"):
            with pytest.raises(InvalidInput, match="cursor"):
                await listing(full).page(cursor)


async def test_a_number_in_a_cursor_fits_into_a_column(full: Client) -> None:
    for number in ("x", "-1", "1.5", str(2**63)):
        for listing, cursor in ((full.audit(), "2026-01-01/{}"), (full.requests(), "2026-01-01/{}/1/r")):
            with pytest.raises(InvalidInput, match="cursor"):
                await listing.page(cursor.format(number))


async def test_ways_to_read_do_not_disturb_each_other(full: Client) -> None:
    listing = full.list_instances(prefix="i")
    first = await anext(listing)
    whole = await listing
    assert [first, *[item async for item in listing]] == whole == await listing
    assert (await listing.page(limit=1)).items == [first]
    assert [item async for item in listing] == []


async def test_an_unknown_condition_is_refused_by_the_call(full: Client) -> None:
    anything: Any = full
    for listing in (anything.audit, anything.list_conversations, anything.list_instances, anything.requests):
        with pytest.raises(InvalidInput, match="there is no condition 'idd'"):
            listing(idd="x")
    with pytest.raises(InvalidInput):
        full.history("")
    with pytest.raises(InvalidInput):
        full.session_manager.list(SessionFilter(idle_for=-1.0))
    unknown = full.history("unknown")
    for read in (unknown, unknown.page(), anext(unknown)):
        with pytest.raises(UnknownInstance):
            await read


async def test_a_page_of_a_history_belongs_to_its_execution(full: Client, puppet: Puppet) -> None:
    """Also once another execution is current."""
    before = await full.history("i0")
    page = await full.history("i0").page(limit=1)
    assert await full.reset("i0", to_event=1) == 2
    assert [*page.items, *(await full.history("i0").page(page.next)).items] == before


def identity(item: Any) -> Any:
    """What a later read of it gives again: the times of sessions go on."""
    return getattr(item, "session_id", None) or repr(item)
