import pytest

from affinity.provider.conformance import ProviderConformance
from tests.provider.sqlite_harness import SqliteHarness


class TestSqlite(ProviderConformance):
    @pytest.fixture
    async def harness(self, tmp_path):
        h = await SqliteHarness.create(tmp_path)
        yield h
        await h.aclose()
