"""Virtual time: an app's workers and a client in one process, on a database of their own whose clock jumps.

Only the database's clock is virtual. It stands still while code runs. When nothing runs and nothing can run, it jumps
to the next due time. The event loop, ``time`` and ``asyncio.sleep`` are the real ones.
"""

from affinity.testing.env.environment import Env

__all__ = ["Env"]
