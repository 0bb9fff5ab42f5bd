"""For tests of applications: `Env`, with virtual time. For tests of providers and stores: the conformance suites,
which need pytest.
"""

from affinity.testing.env import Env

__all__ = ["Env"]
