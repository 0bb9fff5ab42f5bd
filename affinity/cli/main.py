"""The command group: the common options, and the commands."""

from __future__ import annotations

from typing import Any

import click

from affinity.cli import cluster, inspection, instances, stop, worker
from affinity.cli.conversation import conversation
from affinity.cli.demo import demo
from affinity.cli.output import printable
from affinity.cli.replay import replay
from affinity.cli.sessions import sessions
from affinity.cli.shell import INTERRUPTED, MISUSED, exit_code, keep_examples
from affinity.errors import AffinityError
from affinity_workflows import VERSION


class Group(click.Group):
    """A group that gives every error of ours, and Ctrl-C, a line on stderr and an exit code instead of a traceback."""

    def __init__(self, name: str | None = None, *, help: str | None = None, **rest: Any) -> None:
        super().__init__(name, help=keep_examples(help), **rest)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:  # click before 8.2 would exit with 0
            click.echo(ctx.get_help(), err=True)
            ctx.exit(MISUSED)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except AffinityError as error:
            click.echo(f"Error: {printable(error) or type(error).__name__}", err=True)
            ctx.exit(exit_code(error))
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(VERSION)
@click.option("--url", help="The database, for all commands; each takes the option too, and that one wins.")
@click.pass_context
def main(ctx: click.Context, url: str | None) -> None:
    """Durable workflows whose activities stay with the worker that holds their in-memory state.

    Workers, clients and this command meet in a database: --url, else $AFFINITY_URL, else an SQLite file, affinity.db,
    in the working directory.

    A first round, in two terminals:
      affinity worker support:app                     # runs what support.py registers in its `app`
      affinity start conversation --id chat-17 --input '{"topic": "tea"}'
      affinity raise chat-17 user_message --data '{"text": "hello"}'
      affinity show chat-17                           # how it is
      affinity sessions                               # which worker holds what
      affinity sessions list                          # the records of sessions
      affinity wait chat-17 --timeout 60              # prints its result

    For scripts, --json prints one JSON document on stdout. Messages go to stderr. Exit codes:
      0    done
      1    the instance or the wake has failed or was cancelled; `replay`: code does not match a history;
           `demo`: a result is wrong; `worker`: an activity did not end
      2    the command line or an input is wrong; nothing was changed
      3    the database cannot be reached or refuses; or another process took the worker's name
      4    the time given to `wait`, `ask` or `stop` ran out
      5    nothing has this id: no instance, conversation, session, worker or process; `replay`: no history
      6    what has the id does not allow this now: finished, running, in use, busy; or a limit is reached
      130  interrupted by Ctrl-C

    Tab completes commands and options after: eval "$(_AFFINITY_COMPLETE=bash_source affinity)"
    (zsh_source, fish_source).
    """
    ctx.obj = url


for command in (
    worker.worker,
    stop.stop,
    instances.start,
    instances.raise_event,
    instances.ask,
    instances.wait,
    inspection.show,
    inspection.history,
    inspection.list_instances,
    inspection.executions,
    inspection.tree,
    inspection.stats,
    replay,
    instances.cancel,
    instances.resume,
    instances.reset,
    instances.delete,
    instances.prune,
    sessions,
    conversation,
    cluster.workers,
    cluster.drain,
    cluster.migrate,
    cluster.quotas,
    cluster.rebalance,
    demo,
):
    main.add_command(command)
