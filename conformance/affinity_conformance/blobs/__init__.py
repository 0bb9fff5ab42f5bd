"""Conformance tests of blob stores: run them against a store of your own.

A `BlobHarness` gives the suite a store without blobs. With one in hand, this is all that a test module needs::

    import pytest
    from affinity_conformance.blobs import BlobStoreConformance

    class TestMyStore(BlobStoreConformance):
        @pytest.fixture
        async def harness(self, tmp_path):
            yield MyHarness(tmp_path)

Every test is named after the rule of `affinity.blobs.BlobStore` that it checks.
"""

import pytest

# Before the module is imported, so that its failed assertions show the compared values, as in a test module.
pytest.register_assert_rewrite(f"{__name__}.suite")

from affinity_conformance.blobs.suite import BlobHarness, BlobStoreConformance  # noqa: E402

__all__ = ["BlobHarness", "BlobStoreConformance"]
