"""What the page takes for granted: the harness of a provider."""

from pathlib import Path


class MyHarness:
    """Has the methods of `affinity.testing.conformance.providers.Harness`."""

    @classmethod
    async def create(cls, folder: Path) -> "MyHarness":
        """A fresh database."""
        return cls()

    async def aclose(self) -> None:
        """Remove it."""
