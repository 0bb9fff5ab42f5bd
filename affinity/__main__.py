"""``python -m affinity``: the ``affinity`` command."""

from affinity_workflows import main

main()
