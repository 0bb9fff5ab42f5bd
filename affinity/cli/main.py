"""The command group: the options of all commands, and the list of commands.

A command is imported when it is called. Help needs none of them, and so nothing of affinity but this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from affinity.cli.help import EXIT_CODES, MISUSED, HelpGroup
from affinity.cli.terminal import escape_output
from affinity_workflows import VERSION

_THEMES: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Run work": {
        "worker": ("worker.worker", "Run the orchestrations and activities of an app."),
        "start": ("instances.start", "Start an orchestration."),
        "raise": ("instances.raise_event", "Send an event to an instance."),
        "ask": ("instances.ask", "Send an event, and print the reply to it."),
        "wait": ("instances.wait", "Wait for an instance and print its result."),
    },
    "Look": {
        "list": ("inspection.list_instances", "List instances, newest first."),
        "count": ("inspection.count", "Count instances by status."),
        "show": ("inspection.show", "Show how an instance is."),
        "why": ("why.why", "Say what an instance waits for."),
        "history": ("inspection.history", "Show what happened in an instance."),
        "tree": ("inspection.tree", "Show an instance and its sub-orchestrations."),
        "executions": ("inspection.executions", "Show the executions of an instance."),
        "retries": ("inspection.retries", "List activities that are tried again, or wait otherwise."),
        "stats": ("inspection.stats", "Show how much there is to do."),
        "errors": ("errors.errors", "Show what fails most, and search in the texts of errors."),
        "trends": ("affinity.trends.command.trends", "Show starts, ends, retries, waits and durations over time."),
        "workers": ("cluster.workers", "Show the workers."),
        "audit": ("affinity.audit.command.audit", "Show who did what."),
        "console": ("affinity.console.command.console", "Show everything in a browser."),
        "mcp": ("affinity.integrations.command.mcp", "Serve these to an assistant, over standard input and output."),
    },
    "Act on instances": {
        "cancel": ("instances.cancel", "Ask an instance to end."),
        "resume": ("instances.resume", "Resume suspended instances, or drained workers."),
        "rerun": ("instances.rerun", "Start the orchestration of an instance again."),
        "reset": ("instances.reset", "Open an instance again at an earlier event."),
        "delete": ("instances.delete", "Remove an instance and its history."),
        "prune": ("instances.prune", "Remove instances that ended long ago."),
    },
    "Sessions, conversations, schedules": {
        "sessions": ("sessions.sessions", "Show and manage sessions: leases and records."),
        "conversation": ("affinity.conversation.command.conversation", "Show, ask and answer conversations."),
        "schedules": ("affinity.schedules.command.schedules", "Show, create, pause and trigger schedules."),
    },
    "Operate": {
        "check": ("check.check", "Say what a database has and lacks for workers."),
        "migrate": ("cluster.migrate", "Bring the database's schema up to date."),
        "drain": ("cluster.drain", "Drain workers without ending them."),
        "stop": ("stop.stop", "Drain and end a worker of this machine, and wait for its end."),
        "blobs": ("affinity.blobs.command.blobs", "Show and collect what is in the blob store."),
        "reencrypt": ("affinity.blobs.command.reencrypt", "Encode stored payloads again with the key that writes."),
        "rebalance": ("cluster.rebalance", "Show how full the workers are; suspend rebalancing."),
        "limits": ("affinity.flow.command.limits", "Show, change and pause limits, at which work waits."),
        "once-table": ("affinity.effects.command.once_table", "Create the table of affinity.once in your database."),
        "quotas": ("cluster.quotas", "Show or set the limits of the database."),
    },
    "Develop": {
        "init": ("affinity.init.command.init", "Write a small project to begin with: a module, a test, a Dockerfile."),
        "dev": ("dev.dev", "Run a worker that starts again when the code changes, and a console."),
        "replay": ("replay.replay", "Check that code fits the histories of instances."),
        "demo": ("affinity.demo.command.demo", "Replay real conversations, kill a worker, verify the result."),
    },
}
"""By what a person wants, the module and the name of each command, and its line in the help. A module without a package
is in `affinity.cli`; others are of guests.
"""

_COMMANDS: Final = {name: found for commands in _THEMES.values() for name, found in commands.items()}


class _LazyGroup(HelpGroup):
    """A group that imports a command when it is called, and that gives every error, and Ctrl-C, an exit code and a
    line on stderr.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_COMMANDS]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        place, summary = _COMMANDS[name]
        module, _, function = place.rpartition(".")
        found: click.Command = getattr(import_module(module if "." in module else f"affinity.cli.{module}"), function)
        found.short_help = summary
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, _COMMANDS))
        for theme, commands in _THEMES.items():
            with formatter.section(theme):
                formatter.write_dl([(name.ljust(width), summary) for name, (_, summary) in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = {name: summary for name, (_, summary) in _COMMANDS.items() if name.startswith(incomplete)}
        items = [CompletionItem(name, help=summary) for name, summary in found.items()]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in EXIT_CODES])

    def main(self, *args: Any, **extra: Any) -> Any:
        escape_output()
        return super().main(*args, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:  # click before 8.2 would exit with 0
            click.echo(ctx.get_help(), err=True)
            ctx.exit(MISUSED)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException, SystemExit):
            raise
        except BaseException as error:
            from affinity.cli.failures import report

            ctx.exit(report(error))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(VERSION)
@click.option("--url", help="The database, for all commands; each takes the option too, and that one wins.")
@click.pass_context
def main(ctx: click.Context, url: str | None) -> None:
    """Durable workflows whose activities stay with the worker that holds their in-memory state.

    Workers, clients and this command meet in a database: --url, else $AFFINITY_URL, else an SQLite file, affinity.db,
    in the working directory.

    To begin, in two terminals:
      affinity worker support:app                     # runs what support.py registers in its `app`
      affinity start conversation --id chat-17 --input '{"topic": "tea"}'
      affinity raise chat-17 user_message --data '{"text": "hello"}'
      affinity show chat-17                           # how it is
      affinity why chat-17                            # what it waits for
      affinity sessions                               # which worker holds what
      affinity sessions list                          # the records of sessions
      affinity wait chat-17 --timeout 60              # prints its result

    For scripts, --json prints one JSON document on stdout. Messages go to stderr.

    Completion with the Tab key, in the start file of the shell (bash_source, zsh_source, fish_source):
      eval "$(_AFFINITY_COMPLETE=bash_source affinity)"
    """
    ctx.obj = url
