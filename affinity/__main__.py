"""``python -m affinity``: the ``affinity`` command."""

from affinity.cli import main

main()
