"""``python -m affinity``: the ``affinity`` command."""

from affinity_workflows.__main__ import main

main()
