"""Every block of the README and of the documentation does what it says: programs run, commands can be parsed."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import psycopg
import pytest
from click.testing import CliRunner

from affinity.cli import main
from tests.conftest import Servers
from tests.examples.blocks import PAGES, ROOT, SIGNATURES, Block, blocks, blocks_of, program_of
from tests.support.extras import MODULES, needs
from tests.support.forked_programs import Fork, run_program

pytestmark = needs(*MODULES)  # pages and examples speak of all of them

PYTHON_MARKERS = {"", "part", *SIGNATURES}
PROGRAMS = [block for block in blocks("python") if not block.marker]
WITH_PARTS = [page for page in PAGES if program_of(page)]
ELSEWHERE = "examples/integrations/adk_"
"""`tests/integrations/adk` compares these with their page, and runs them: ADK is not installed here."""

FILES = sorted(
    {
        match[1]
        for block in blocks()
        if (match := re.fullmatch(r"(?:from|output of) (.+\.py)", block.marker)) and not match[1].startswith(ELSEWHERE)
    }
)
TEMPLATES = [block for block in blocks() if re.fullmatch(r"from .+\.txt", block.marker)]
LONG_FILES = {name for name in FILES if "/test_" in name or name == "examples/tutorial/step10.py"}
"""Programs that take two seconds or more: they start workers or servers several times."""

PRINTS = {
    "langgraph_durable": "requires_action {'may I': 'refund', 'cents': 5000}\nDone: 5000 cents are on their way.\n",
    "first": "answer 1: you said 'hello'\n1 user.message\n2 span.started\n3 agent.message\n4 span.completed\n",
    "stream": "\nreplied: Your order is on its way.\n",  # a slow reader misses the last streamed parts
    "approval": "requires_action requires_action\nDone: 5000 cents are on their way.\n",
    "refund": "Done: payment of 4200 cents\n",
    "report": "Here it is: 500\nHere it is: 1000 orders in 2 regions\n",
    "steps": "Thank you: payment of 4200 cents\nThe parcel is on its way\n",
    "revisit": "(no reply yet, 1)\nAre you still there? (no reply yet, 2)\nI leave you alone. idle\n",
    "agents_plain": "I have looked at it: 42.00 € for order 7 are on their way.\n",
    "agents_durable": "I have looked at it: 42.00 € for order 7 are on their way.\n",
    "agents_approved": "waits for agent.tool_confirmation\nI have looked at it: 42.00 € are on their way.\n",
    "clerk_plain": "I have looked at it: 42.00 € for a pot of tea are on their way.\n",
    "clerk_durable": "I have looked at it: 42.00 € for a pot of tea are on their way.\n",
    "clerk_approved": "waits for agent.tool_confirmation\nI have looked at it: 42.00 € are on their way.\n",
    "delegate": "I have found: the length of the cable: 42 cm\nchat-7/research research\n",
}
"""The output of programs whose output no page shows."""

TYPED = [ROOT / "examples" / name for name in ("tutorial", "conversations", "integrations", "testing", "web", "sync")]
COMMANDS = [block for block in blocks("sh") if block.marker not in ("demo", "test")]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run(program: Path, folder: Path) -> str:
    """The output of a program, in an empty directory. Tests are started as a reader would start them."""
    if not program.stem.startswith("test_"):
        return Fork(run_program, str(program), folder=folder).output()
    options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull]
    command = [sys.executable, "-W", "error", "-m", "pytest", *options, str(program)]
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_block_has_a_language_and_a_marker_that_is_known() -> None:
    for block in blocks("python"):
        assert block.marker in PYTHON_MARKERS or block.marker.startswith("from "), block
    assert {block.language for block in blocks()} <= {"", "mermaid", "python", "sh", "sql", "text", "toml", "yaml"}


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_a_program_runs_as_pasted(block: Block, tmp_path: Path) -> None:
    program = tmp_path / "pasted.py"
    program.write_text(block.text)
    run(program, tmp_path)


def test_the_first_block_on_tests_runs_as_pasted(tmp_path: Path) -> None:
    block = next(blocks_of(ROOT / "docs" / "learn" / "testing.md"))
    program = tmp_path / "test_pasted.py"
    program.write_text(block.text)
    assert "1 passed" in run(program, tmp_path)


@pytest.mark.parametrize("page", WITH_PARTS, ids=name_of)
def test_the_parts_of_a_page_are_a_program(page: Path, tmp_path: Path) -> None:
    program = tmp_path / "parts.py"
    program.write_text(program_of(page))
    run(program, tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed: nox -s types")
def test_the_parts_of_the_pages_and_their_programs_have_the_types_that_they_say(tmp_path: Path) -> None:
    for page in WITH_PARTS:
        (tmp_path / f"{page.stem.replace('-', '_')}_parts.py").write_text(program_of(page))
    programs = [*sorted(tmp_path.iterdir()), *(path for folder in TYPED for path in sorted(folder.glob("*.py")))]
    command = [sys.executable, "-m", "mypy", "--strict", *map(str, programs)]
    paths = os.environ | {"MYPYPATH": os.pathsep.join(map(str, TYPED))}
    done = subprocess.run(command, check=False, cwd=ROOT, env=paths, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow_cases(r"integrations/(agents_plain|agents_approved|clerk_approved)")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG_FILES else name for name in FILES]
)
def test_a_program_is_as_shown_and_prints_what_is_shown(name: str, tmp_path: Path) -> None:
    """The blocks of a page that name the same file: lines of it, and lines that it prints."""
    file = ROOT / name
    text, output = dedented(file.read_text()), dedented(run(file, tmp_path))
    for block in blocks():
        if block.marker == f"from {name}":
            assert dedented(block.text) in text, block
        elif block.marker == f"output of {name}":
            assert dedented(block.text) in output, f"{block}: {output}"
    assert PRINTS.get(file.stem, "") in output
    for streamed in re.findall("^streamed: (.*)$", output, re.MULTILINE):
        assert "Your order is on its way.".startswith(streamed)


@pytest.mark.parametrize("block", TEMPLATES, ids=str)
def test_lines_of_a_template_are_as_shown(block: Block) -> None:
    """`tests/cli/test_init.py` runs the projects that are made of it."""
    assert block.text in (ROOT / block.marker.removeprefix("from ")).read_text()


def dedented(text: str) -> str:
    """Lines without their indentation and blank lines: a page may show the body of a function by itself."""
    return "".join(f"{line.strip()}\n" for line in text.splitlines() if line.strip())


@pytest.mark.parametrize("block", COMMANDS, ids=str)
def test_a_command_can_be_parsed(block: Block) -> None:
    for words in commands_in(block.text):
        check(words)


def commands_in(text: str) -> Iterator[list[str]]:
    """The commands of a shell block, without comments and variables that are set for one of them."""
    for line in text.replace("\\\n", " ").splitlines():
        for command in re.split(r"&&|\|", line):
            words = shlex.split(command, comments=True)
            while words and re.match(r"\w+=", words[0]):
                words.pop(0)
            if words:
                yield words


def check(words: list[str]) -> None:
    program, *arguments = words
    match Path(program).name:
        case "affinity":
            parse(main, arguments)
        case "python" | "python3" if arguments[0] == "-m":
            assert importlib.util.find_spec(arguments[1]) is not None, words
        case "python" | "python3":
            assert (ROOT / arguments[0]).exists(), words
        case "pytest":
            assert all((ROOT / word).exists() for word in arguments if "/" in word), words
        case "kubectl" | "docker":  # what they read of this repository
            assert all((ROOT / word).exists() for word in arguments if word.startswith("deploy/")), words
        case "nox":
            assert f"\ndef {arguments[1]}(session" in (ROOT / "noxfile.py").read_text(), words
        case "cd" | "pip" | "uvicorn":
            pass
        case _:
            raise AssertionError(f"what is {program}?")


def parse(command: click.Command, arguments: list[str], parent: click.Context | None = None) -> None:
    """As click does before it calls anything: commands and options exist, values have the types of their options."""
    if not isinstance(command, click.Group):
        command.make_context(command.name, list(arguments), parent=parent)
        return
    context = click.Context(command, info_name=command.name, parent=parent)
    _, rest, _ = command.make_parser(context).parse_args(list(arguments))
    if rest:
        name, found, further = command.resolve_command(context, rest)
        assert found is not None, name
        parse(found, further, context)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_options_in_the_text_exist(page: Path) -> None:
    for text in re.findall(r"`affinity ([a-z][^`]*)`", page.read_text()):
        command: click.Command = main
        if text.split()[0] in ("lease", "client", "store"):  # names of connections in the database
            continue
        for word in text.replace("…", " ").split():
            if isinstance(command, click.Group) and (found := command.get_command(click.Context(command), word)):
                command = found
            elif word.startswith("--"):
                names = {"--help"} | {option for parameter in command.params for option in parameter.opts}
                assert word.split("=")[0] in names, text
        assert command is not main, text


def test_the_roles_of_the_page_can_be_made_and_migrate(servers: Servers) -> None:
    """The SQL of docs/run/databases.md and the command below it, on a server and a database of other names."""
    server = servers.server("new")
    (sql,) = (block for block in blocks("sql") if block.page.name == "databases.md")
    (command,) = (words for block in COMMANDS for words in commands_in(block.text) if "--grant-worker" in words)
    name = server.create_database()
    with psycopg.connect(server.url(name), autocommit=True) as connection:
        roles = ["app_owner", "app_worker", "app_web"]
        try:
            for statement in sql.text.replace("DATABASE app ", f"DATABASE {name} ").splitlines():
                connection.execute(statement.encode())
            arguments = [*command[1:-1], f"{server.url(name)}{'&' if '?' in server.url(name) else '?'}user=app_owner"]
            done = CliRunner().invoke(main, arguments)
            assert done.exit_code == 0, done.output
        finally:
            for role in roles:
                connection.execute(f"DROP OWNED BY {role}".encode())
                connection.execute(f"DROP ROLE {role}".encode())
    server.drop_database(name)
