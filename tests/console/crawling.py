"""A reader of pages, which follows their links."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import urljoin

if TYPE_CHECKING:
    import httpx2 as httpx


class Tags(HTMLParser):
    """The tags of a page, with their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def links(self, *names: str) -> Iterator[str]:
        """Where the page leads, and what it loads: the values of these attributes."""
        for _, attributes in self.tags:
            for name in names:
                if attributes.get(name):
                    yield attributes[name] or ""


async def crawl(http: httpx.AsyncClient, start: str) -> dict[str, httpx.Response]:
    """All that can be reached by links, but for forms, downloads, and the same pages with other times."""
    found: dict[str, httpx.Response] = {}
    left = [start]
    while left:
        address = left.pop()
        if address in found or "#" in address or "times=" in address:
            continue
        found[address] = answer = await http.get(address)
        assert answer.status_code == 200, f"{address}: {answer.status_code} {answer.text[:500]}"
        if answer.headers["content-type"].startswith("text/html"):
            left += [urljoin(address, link) for link in Tags(answer.text).links("href", "src")]
    return found
