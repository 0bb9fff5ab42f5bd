"""What the page takes for granted: a provider, and its harness."""

from pathlib import Path
from urllib.parse import urlsplit

from affinity.provider import Progress, SchemaReport, Timeline
from affinity.provider.contract import Provider
from affinity.provider.sqlite import SqliteProvider


class MyProvider:
    """Keeps the database ``mydb:///path`` in an SQLite file."""

    @staticmethod
    async def connect(url: str, timeline: Timeline | None) -> Provider:
        """Open a migrated file."""
        return await SqliteProvider.open(MyProvider._file(url), timeline=timeline)

    @staticmethod
    async def migrate(url: str, progress: Progress) -> tuple[int, int]:
        """Return the versions of the schema before and after."""
        return await SqliteProvider.migrate(MyProvider._file(url), progress)

    @staticmethod
    async def inspect(url: str) -> SchemaReport:
        """Return the state of the schema."""
        return await SqliteProvider.inspect_schema(MyProvider._file(url))

    @staticmethod
    def _file(url: str) -> Path:
        return Path(urlsplit(url).path)


class MyHarness:
    """Has the methods of `affinity_conformance.providers.Harness`."""

    @classmethod
    async def create(cls, folder: Path) -> "MyHarness":
        """A fresh database."""
        return cls()

    async def aclose(self) -> None:
        """Remove it."""
