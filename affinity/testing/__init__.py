"""For tests of applications: `Env`, with virtual time, and `replay`, of a history against the code. For tests of
providers and stores: the conformance suites, which need pytest.
"""

from affinity.testing.env import Env
from affinity.testing.replaying import replay

__all__ = ["Env", "replay"]
