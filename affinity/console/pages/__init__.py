"""What each page reads. A page is a function of the client, the query of the URL, and the values that it shows."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache

from affinity.composed.client import Client
from affinity.console.pages import errors, instances, overview, retries, sessions, starts, workers
from affinity.console.pages.base import Page, Waiting
from affinity.errors import InvalidOptions
from affinity.guests import modules

_PAGES = {
    page.path: page
    for page in (
        Page("/", "Overview", "overview.html", overview.overview),
        Page("/workers", "Workers", "workers.html", workers.workers),
        Page("/drain", "Drain", "drain.html", workers.drain),
        Page("/sessions", "Sessions", "sessions.html", sessions.sessions),
        Page("/records", "Records", "records.html", sessions.records),
        Page("/session", "Session", "session.html", sessions.session),
        Page(
            *("/instances", "Instances", "instances.html", instances.instances),
            waiting=instances.suspended,
            several=["status"],
        ),
        Page("/errors", "Errors", "errors.html", errors.errors),
        Page("/instance", "Instance", "instance.html", instances.instance),
        Page("/retries", "Retries", "retries.html", retries.retries, waiting=retries.retried),
        Page("/start", "Start", "start.html", starts.start),
        Page("/rerun", "Run again", "rerun.html", starts.rerun),
        Page("/reset", "Reset", "reset.html", instances.reset),
    )
}

_FIRST = ("/", "/instances", "/errors", "/retries", "/sessions", "/workers")


@cache
def pages() -> Mapping[str, Page]:
    """The pages by path below the console's prefix. A guest's module ``page`` has its own, named ``PAGES``."""
    return {**_PAGES, **{page.path: page for module in modules("page").values() for page in module.PAGES}}


@cache
def menu() -> Sequence[tuple[str, str]]:
    """The path and the title of each page that the menu shows."""
    of_guests = [page for page in pages().values() if page.is_in_menu]
    paths = [page.path for page in sorted(of_guests, key=lambda page: page.is_last)]
    return [(path, pages()[path].title) for path in (*_FIRST, *paths)]


def check_views(views: Mapping[str, str]) -> Mapping[str, str]:
    """Return the addresses of views, by their names.

    Raises:
        InvalidOptions: one is not the address of a page, such as ``/instances?status=failed``.
    """
    for name, address in views.items():
        if address.partition("?")[0] not in pages():
            raise InvalidOptions(f"the view {name!r:.80} is no page such as /instances?status=failed: {address!r:.200}")
    return views


async def waiting(client: Client) -> Mapping[str, Waiting]:
    """What waits for a person on the pages of the menu, by path; nothing of a page on which nothing waits."""
    found = {}
    for path, _ in menu():
        if (count := pages()[path].waiting) is not None:
            with suppress(InvalidOptions):  # the provider of this database has no verbs of this guest
                found[path] = await count(client)
    return {path: each for path, each in found.items() if each.number}


__all__ = ["Page", "check_views", "menu", "pages", "waiting"]
