"""The command ``affinity``: its console script, ``python -m affinity`` and ``python -m affinity_workflows``."""

from __future__ import annotations

import signal
import sys

from affinity_workflows import SIGNALLED, check_installation, heed_signals


def main() -> None:
    """Run the command ``affinity``."""
    heed_signals()
    try:
        check_installation()
        from affinity.cli import main as command  # after the check: the package may be the other project's
    except ImportError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit(SIGNALLED + signal.SIGINT)
    command()


if __name__ == "__main__":
    main()
