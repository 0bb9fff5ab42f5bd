"""``affinity init``: a project to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click
from pydantic_core import to_json

from affinity.cli.help import Command
from affinity.init.project import Project, Template


@click.command(cls=Command)
@click.argument("name", required=False)
@click.option(
    "--template",
    type=click.Choice(get_args(Template)),
    default="chat",
    show_default=True,
    help="What it begins with.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, for scripts.")
def init(*, name: str | None, template: Template, as_json: bool) -> None:
    """Write a small project into the new folder NAME: a module, its test, a Dockerfile and a compose.yaml.

    NAME is also the name of the module and of the app in it; without NAME they have the name of the template. Nothing
    is overwritten: if there is something of this name, the exit code is 2.

    The project needs no network, no key and no server. `affinity dev` runs it on an SQLite file, and shows a console
    with a button that kills the worker. Press it while an answer is on its way: another worker starts, and the answer
    comes. Then put your own code in the place of `model` or of `payment_service`.

    Templates:
      chat      a conversation, with a state that is committed with each answer
      workflow  an orchestration that waits for a person, and pays once
      agent     a model that calls a tool, which a person may have to allow

    The tests need pytest: `pip install pytest`, then `python -m pytest` in the folder.

    Examples:
      affinity init
      affinity init support --template agent
      affinity init refunds --template workflow --json
    """
    project = Project(name or template, template)
    folder = project.write(Path.cwd())
    if as_json:
        click.echo(
            to_json(
                {
                    "folder": str(folder),
                    "template": template,
                    "files": [*project.texts()],
                    "next": project.commands,
                },
                indent=2,
            )
        )
        return
    enter, run, use = project.commands
    click.echo(f"{project.name}/ has {', '.join(project.texts())}.\n", err=True)
    click.echo(f"{enter}\n{run}\n{use}")
    click.echo("\nThe last command is for a second terminal, in the same folder.", err=True)
