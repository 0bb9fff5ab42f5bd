"""``affinity console``: the console, served by this process."""

from __future__ import annotations

import ipaddress
import os
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, get_args

import click

from affinity.cli.logs import LogFormat, configure_logging
from affinity.cli.shell import Shell, command, current_user
from affinity.errors import InvalidOptions

if TYPE_CHECKING:
    from affinity.console import Console
    from affinity.console.serving import Login

_ACTIONS: Final = [
    *("answer", "converse", "raise", "cancel", "resume", "reset", "start", "delete", "release", "move", "drain"),
    *("limit", "schedule"),
]

VARIABLE: Final = "AFFINITY_CONSOLE_TOKEN"
"""Environment variable with the token, where a file is hard to mount."""


@command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8321, show_default=True, help="0: any free one.")
@click.option("--allow", "actions", multiple=True, type=click.Choice(["all", *_ACTIONS]), help="What users may do.")
@click.option("--hide-payloads", is_flag=True, help="Show no values of the application.")
@click.option("--token-file", metavar="FILE", help="A token with which users log in, at /login?token=…")
@click.option("--basic-auth-file", metavar="FILE", help="A line NAME:PASSWORD for each user.")
@click.option("--trust-header", metavar="NAME", help="A header in which a proxy names the user.")
@click.option("--trusted-proxy", "proxies", multiple=True, metavar="CIDR", help="From where that header counts.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A name under which it may be asked.")
@click.option("--root-path", default="", metavar="PATH", help="The prefix that a proxy takes away, as in /ops.")
@click.option("--origin", "origins", multiple=True, metavar="URL", help="Of its pages, if a proxy changes Host.")
@click.option("--link", "links", multiple=True, metavar="TEXT=URL", help="To logs or traces: https://…{instance_id}.")
@click.option("--view", "views", multiple=True, metavar="TEXT=PATH", help="In the menu: /instances?status=failed.")
@click.option(
    "--log-format",
    type=click.Choice(get_args(LogFormat)),
    default="text",
    show_default=True,
    help="Of actions, on stderr.",
)
def console(shell: Shell, *, log_format: LogFormat, **options: Any) -> None:
    """Show workers, sessions, instances and conversations in a browser, as they are and as they change.

    It prints an address with a token that works once, on this machine. It only reads, unless --allow names what else
    users may do. To listen on another --host it needs one of --token-file, --basic-auth-file (both files readable by
    their owner only), a token in the environment variable AFFINITY_CONSOLE_TOKEN, or --trust-header with
    --trusted-proxy; and --allow-host, the name in the address. Probes are answered at /live and /ready. It needs an
    extra: pip install 'affinity-workflows[console]'.

    Examples:
      affinity console --url postgresql://db/app
      affinity console --allow answer --allow resume
      affinity console --host 0.0.0.0 --allow-host ops.example --basic-auth-file users --hide-payloads
    """
    try:
        import uvicorn

        from affinity.console import serving
    except ModuleNotFoundError as error:
        raise InvalidOptions(f"{error}: pip install 'affinity-workflows[console]'") from None
    hosts = [*map(str.lower, options["hosts"]), *(serving.LOCAL if _is_local(options["host"]) else ())]
    if not hosts:
        raise click.UsageError("--host: give --allow-host too, the name in the address that users type")
    configure_logging("info", log_format)
    token = secrets.token_urlsafe(32)
    app = _application(shell, options)
    gate = serving.Gate(app, _login(options, token), hosts, app.is_ready)
    config = serving.server_config(gate, options["host"], options["port"], options["root_path"].rstrip("/"))
    socket = serving.listen(options["host"], options["port"])
    name, port = (options["host"] if _is_local(options["host"]) else hosts[0]), socket.getsockname()[1]
    address = f"http://{f'[{name}]' if ':' in name else name}:{port}"
    path = f"/login?token={token}" if _is_default(options) else "/"
    shell.show({"url": address + path, "port": port}, lambda: click.echo(address + path))
    uvicorn.Server(config).run([socket])


def _application(shell: Shell, options: dict[str, Any]) -> Console:
    from affinity.console import ALL, READ, Access, create, hide_payloads
    from affinity.console.payloads import show_all
    from affinity.console.serving import USER

    actions = ALL if "all" in options["actions"] else READ | set(options["actions"])
    return create(
        shell.url,
        access=lambda request: Access(actions, request.scope[USER]),
        redact=hide_payloads if options["hide_payloads"] else show_all,
        origins=options["origins"],
        links=_pairs("--link", options["links"], "logs=https://logs.example/?q={instance_id}"),
        views=_pairs("--view", options["views"], "failed today=/instances?status=failed&within=24h"),
    )


def _pairs(option: str, pairs: Sequence[str], example: str) -> dict[str, str]:
    """Addresses by their texts.

    Raises:
        click.UsageError: an option has no text, or no address.
    """
    found = {}
    for pair in pairs:
        text, _, address = pair.partition("=")
        if not text or not address:
            raise click.UsageError(f"{option} {pair}: give a text and an address, as in {example!r}")
        found[text] = address
    return found


def _login(options: dict[str, Any], token: str) -> Login:
    """How users log in.

    Raises:
        click.UsageError: options contradict each other, or the address needs one of them.
        InvalidOptions: a file or a network is wrong.
    """
    from affinity.console import serving

    token_file, passwords, header, proxies = (
        options[name] for name in ("token_file", "basic_auth_file", "trust_header", "proxies")
    )
    if sum(map(bool, (token_file, passwords, header))) > 1:
        raise click.UsageError("give one of --token-file, --basic-auth-file and --trust-header")
    if bool(header) != bool(proxies):
        raise click.UsageError("--trust-header and --trusted-proxy need each other")
    if token_file:
        return serving.TokenLogin(serving.token_of_file(token_file), "token", once=False)
    if (secret := os.environ.get(VARIABLE)) and not (passwords or header):
        return serving.TokenLogin(serving.check_token(secret, VARIABLE), "token", once=False)
    if passwords:
        return serving.BasicLogin(serving.passwords_of_file(passwords))
    if header:
        return serving.ProxyLogin(header, proxies)
    if not _is_local(options["host"]):
        wanted = "--token-file, --basic-auth-file, or --trust-header with --trusted-proxy"
        raise click.UsageError(f"--host {options['host']} is reached by others: give {wanted}")
    return serving.TokenLogin(token, current_user(), once=True)


def _is_default(options: dict[str, Any]) -> bool:
    named = options["token_file"] or options["basic_auth_file"] or options["trust_header"]
    return not (named or os.environ.get(VARIABLE))


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
