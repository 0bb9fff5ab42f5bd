"""The last module that the server of `worker_processes.FORKS` imports: the garbage collectors of the processes that it
forks leave out what they have of it. To look at it again would take each of them longer than to start.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
