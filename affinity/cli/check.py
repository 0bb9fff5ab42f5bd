"""``affinity check``: what workers will find at a database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

import anyio
import click

from affinity import provider
from affinity.cli.help import NO_DATABASE
from affinity.cli.output import printable
from affinity.cli.shell import Shell, command
from affinity.provider import CheckResult


@command()
def check(shell: Shell) -> None:
    """Look at the database, and say what workers will find there; nothing is changed.

    A line for each check: ok; warning, if workers run and something is slower or less safe; error, if workers cannot
    run. A warning or an error names a remedy. With an error the exit code is 3. Workers log the warnings when they
    start.

    On PostgreSQL: the version, a pooler in between, whether the server is the primary, the rights of the role, the
    schema, the encoding, whether notifications arrive, whether failovers are noticed, the clock, the durability of
    commits, room for connections, vacuum and isolation; and whether a direct URL leads to the same database. On SQLite:
    the version, the file and its journal, the disk.

    Examples:
      affinity check --url postgresql://app_worker@db/app
      affinity check --json | jq -r '.results[] | select(.level != "ok")'
    """
    results = anyio.run(provider.check_database, shell.url)
    has_errors = any(result.level == "error" for result in results)
    shell.show({"usable": not has_errors, "results": [asdict(result) for result in results]}, partial(_show, results))
    if has_errors:
        click.get_current_context().exit(NO_DATABASE)


def _show(results: Sequence[CheckResult]) -> None:
    width = max(len(result.check) for result in results)
    for result in results:
        click.echo(f"{result.level:<7}  {result.check:<{width}}  {printable(result.found)}")
        if result.remedy:
            click.echo(f"{'':<7}  {'':<{width}}  remedy: {printable(result.remedy)}")
