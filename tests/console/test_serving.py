"""The command: addresses, hosts, logins."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import httpx2 as httpx
import pytest
from click.testing import CliRunner
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from affinity import Client
from affinity.cli import main
from affinity.cli.help import MISUSED
from affinity.console import command, create, recent, serving
from affinity.console.requests import COOKIE, token_of
from affinity.console.serving import (
    FREE_ATTEMPTS,
    MAX_LOGINS,
    MAX_QUEUE,
    USER,
    BasicLogin,
    Gate,
    Login,
    ProxyLogin,
    TokenLogin,
    passwords_of_file,
    token_of_file,
)
from affinity.errors import ConnectionLost, InvalidOptions
from tests.support.worker_processes import ROOT

pytestmark = pytest.mark.anyio

TOKEN = "x" * 20


async def whoami(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse(f"you are {scope[USER]}")(scope, receive, send)


def basic(user: str, password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def browser(login: Login, address: str = "127.0.0.1", **options: Any) -> httpx.AsyncClient:
    gate = Gate(whoami, login, options.pop("hosts", ["127.0.0.1", "localhost"]))
    transport = httpx.ASGITransport(app=gate, client=(address, 1234), **options)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8321")


async def test_a_token_is_used_once() -> None:
    """In exchange for a cookie that scripts and other sites do not get."""
    async with browser(login := TokenLogin(TOKEN, "ann", once=True)) as http:
        assert (await http.get("/")).status_code == 401
        assert (await http.get("/login?token=wrong")).status_code == 401
        found = await http.get(f"/login?token={TOKEN}")
        assert 'content="0;url=/"' in found.text
        cookie = found.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert (await http.get("/")).text == "you are ann"
        assert found.headers["content-security-policy"].startswith("default-src 'none'")
    async with browser(login) as other:
        assert (await other.get(f"/login?token={TOKEN}")).status_code == 401
        assert (await other.get("/")).status_code == 401


async def test_a_login_under_a_prefix() -> None:
    """Which the server adds to the path, as uvicorn does with its root path."""
    async with browser(TokenLogin(TOKEN, "ann", once=True), root_path="/ops") as http:
        assert (await http.get(f"/login?token={TOKEN}")).status_code == 401
        found = await http.get(f"/ops/login?token={TOKEN}")
        assert 'content="0;url=/ops/"' in found.text
        assert "path=/ops" in found.headers["set-cookie"].lower()
        assert (await http.get("/ops/")).text == "you are ann"


async def test_a_link_on_another_site_leads_to_the_page() -> None:
    """The browser sends no strict cookie with it: the answer has it load the page as from here."""
    async with browser(TokenLogin(TOKEN, "ann", once=False)) as http:
        found = await http.get('/instance?id=a"b', headers={"sec-fetch-site": "cross-site"})
        assert found.status_code == 200
        assert 'content="0;url=/instance?id=a%22b"' in found.text


@pytest.mark.parametrize("path", ["//evil.test/x", "///evil.test", "/%2Fevil.test", "/%2F%2Fevil.test/x"])
@pytest.mark.parametrize("logged_in", [True, False])
async def test_no_address_leads_to_another_site(path: str, logged_in: bool) -> None:
    """Two slashes at its beginning would name a host."""
    async with browser(TokenLogin(TOKEN, "ann", once=False)) as http:
        if logged_in:
            await http.get(f"/login?token={TOKEN}")
            http.cookies.clear()
        found = await http.get(f"http://127.0.0.1:8321{path}", headers={"sec-fetch-site": "cross-site"})
        assert 'content="0;url=/evil.test' in found.text
        assert "url=//" not in found.text


async def test_two_consoles_of_one_machine_keep_their_users() -> None:
    """Browsers send all cookies of a host to each of its ports."""
    first, second = (TokenLogin(TOKEN, name, once=True) for name in ("ann", "bob"))
    async with browser(first) as http:
        await http.get(f"/login?token={TOKEN}")
        async with browser(second) as other:
            other.cookies = http.cookies
            await other.get(f"/login?token={TOKEN}")
            assert (await other.get("/")).text == "you are bob"
        assert (await http.get("/")).text == "you are ann"


async def test_a_token_of_a_file_is_used_again_and_old_cookies_end() -> None:
    login = TokenLogin(TOKEN, "token", once=False)
    async with browser(login) as http:
        await http.get(f"/login?token={TOKEN}")
        assert (await http.get("/")).text == "you are token"
        async with browser(login) as other:
            for _ in range(MAX_LOGINS):
                await other.get(f"/login?token={TOKEN}")
        assert (await http.get("/")).status_code == 401


@pytest.mark.parametrize(
    "host",
    [
        *("evil.test", "evil.test:8321", "127.0.0.1.evil.test", "", "evil.test/", "[", "a@b"),
        *("evil@127.0.0.1", "evil:x@127.0.0.1:8321", "127.0.0.1/evil", "127.0.0.1:x", "127.0.0.1?", "[::1", "[::1]x"),
    ],
)
async def test_other_hosts_are_not_answered(host: str) -> None:
    """A page whose name leads to this machine reads nothing."""
    async with browser(TokenLogin(TOKEN, "ann", once=True)) as http:
        assert (await http.get(f"/login?token={TOKEN}", headers={"host": host})).status_code == 421
        assert (await http.get("/login?token=" + TOKEN, headers={"host": "localhost:8321"})).status_code == 200


async def test_names_and_passwords() -> None:
    async with browser(BasicLogin({"ann": "secret", "bob": "s:e"})) as http:
        refused = await http.get("/")
        assert (refused.status_code, refused.headers["www-authenticate"][:5]) == (401, "Basic")
        for user, password, status in (("ann", "secret", 200), ("bob", "s:e", 200), ("ann", "", 401), ("eve", "", 401)):
            assert (await http.get("/", auth=(user, password))).status_code == status
        assert (await http.get("/", headers={"authorization": "Basic !"})).status_code == 401


async def test_a_proxy_names_the_user() -> None:
    login = ProxyLogin("X-Forwarded-User", ["10.0.0.0/8", "::1"])
    named = {"x-forwarded-user": "ann"}
    twice = [("x-forwarded-user", "root"), ("X-Forwarded-User", "mallory")]
    for address, headers, status in (
        ("10.1.2.3", named, 200),
        ("10.1.2.3", {}, 401),
        ("10.1.2.3", {"x-forwarded-user": ""}, 401),
        ("10.1.2.3", twice, 401),  # the one of the user, and the one of a proxy that only adds
        ("192.0.2.1", named, 401),
        ("::ffff:10.1.2.3", named, 200),  # as a server of both families names it
        ("::ffff:192.0.2.1", named, 401),
        ("::1", named, 200),
        ("", named, 401),  # of a socket in the file system
    ):
        async with browser(login, address) as http:
            assert (await http.get("/", headers=headers)).status_code == status, (address, headers)
    with pytest.raises(InvalidOptions, match="trusted-proxy"):
        ProxyLogin("X-Forwarded-User", ["10.0.0.0/99"])


@pytest.mark.parametrize(
    ("login", "path", "headers", "line"),
    [
        (BasicLogin({"ann": "right"}), "/", basic("ann", "wrong"), "wrong name or password, as 'ann'"),
        (BasicLogin({"ann": "right"}), "/", basic("e\nve", "x"), r"wrong name or password, as 'e\nve'"),
        (BasicLogin({"ann": "right"}), "/", {}, ""),  # the browser asks the user only then
        (TokenLogin(TOKEN, "ann", once=True), "/login?token=x", {}, "a token that was used, or is wrong"),
        (TokenLogin(TOKEN, "ann", once=True), "/", {}, ""),
        (TokenLogin(TOKEN, "ann", once=True), "/", {"host": "evil.test"}, "it asks for the host 'evil.test'"),
        (ProxyLogin("X-User", ["10.0.0.0/8"]), "/", {"x-user": "ann"}, "X-User from an address that is no"),
    ],
)
async def test_refused_logins_are_logged(
    login: Login, path: str, headers: dict[str, str], line: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With the address and the reason, and never with a secret."""
    serving._LOGGED.clear()
    async with browser(login, "192.0.2.7") as http:
        assert (await http.get(path, headers=headers)).status_code in {401, 421}
        await http.get(path, headers=headers)  # within the same second
    lines = [record.getMessage() for record in caplog.records if record.name == "affinity.console"]
    assert [text.startswith(f"a request from 192.0.2.7 was refused: {line}") for text in lines] == [True] * bool(line)


async def test_refused_logins_slow_down_those_that_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the same address, one at a time; not the users who have logged in before."""
    monkeypatch.setattr(serving, "MAX_DELAY", 0.1)
    async with browser(BasicLogin({"ann": "right"}), "192.0.2.7") as http:
        assert (await http.get("/", headers=basic("ann", "right"))).status_code == 200
        for _ in range(FREE_ATTEMPTS + 1):
            await http.get("/", headers=basic("bob", "wrong"))
        begun, codes = time.monotonic(), list[int]()

        async def attempt(name: str, password: str) -> None:
            codes.append((await http.get("/", headers=basic(name, password))).status_code)

        async with anyio.create_task_group() as tasks:
            for _ in range(MAX_QUEUE + 1):
                tasks.start_soon(attempt, "bob", "guess")
            tasks.start_soon(attempt, "ann", "right")
    assert sorted(codes) == [200, *[401] * MAX_QUEUE, 429]
    assert codes.index(200) <= 1
    assert time.monotonic() - begun >= 0.1 * (MAX_QUEUE - 1)


@pytest.mark.parametrize("root_path", ["", "/ops"])
async def test_probes_need_no_login(root_path: str) -> None:
    """For any host, with nothing of the pages: live at once, ready as soon as the database was read."""
    ready: list[bool] = []

    async def is_ready() -> bool:
        return bool(ready)

    gate = Gate(whoami, BasicLogin({"ann": "right"}), ["ops.example"], is_ready)
    transport = httpx.ASGITransport(app=gate, root_path=root_path)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://10.1.2.3:8321{root_path}") as http:
        assert [(await http.get(path)).status_code for path in ("/live", "/ready", "/")] == [200, 503, 421]
        ready.append(True)
        assert [(await http.get(path)).status_code for path in ("/live", "/ready", "/live/x")] == [200, 200, 421]


async def test_a_console_is_ready_once_it_has_read_the_database(kept_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And stays so: its pages say that the database is away."""

    async def lost(client: Client) -> Client:
        raise ConnectionLost("gone")

    monkeypatch.setattr(recent, "SECONDS", 0.0)
    async with create(kept_url) as console:
        with monkeypatch.context() as down:
            down.setattr(Client, "__aenter__", lost)
            assert not await console.is_ready()
        assert await console.is_ready()
        with monkeypatch.context() as down:
            down.setattr(Client, "workers", lost)
            assert await console.is_ready()


async def test_a_proxy_reaches_a_console_on_all_addresses() -> None:
    """By IPv4 too, under the address that --trusted-proxy names."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    listening = serving.listen("::", 0)
    gate = Gate(whoami, ProxyLogin("X-User", ["127.0.0.0/8"]), [])
    server = serving._Server(serving.server_config(gate, "::", 0))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, [listening])
        async with httpx.AsyncClient(headers={"x-user": "ann"}) as http:
            port = listening.getsockname()[1]
            assert (await http.get(f"http://127.0.0.1:{port}/")).text == "you are ann"
            assert (await http.get(f"http://[::1]:{port}/")).status_code == 401
        server.should_exit = True


def test_the_token_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the place of a file, and is no address that works once."""
    options = {"token_file": None, "basic_auth_file": None, "trust_header": None, "proxies": (), "host": "192.0.2.1"}
    monkeypatch.setenv("AFFINITY_CONSOLE_TOKEN", TOKEN)
    login = command._login(options, "printed")
    assert isinstance(login, TokenLogin)
    assert (login._token, login._once, command._is_default(options)) == (TOKEN, False, False)
    monkeypatch.setenv("AFFINITY_CONSOLE_TOKEN", "short")
    with pytest.raises(InvalidOptions, match="AFFINITY_CONSOLE_TOKEN"):
        command._login(options, "printed")


def test_files_of_secrets(tmp_path: Path) -> None:
    """Only their owner may read them."""
    file = tmp_path / "secrets"
    for read, good, wrong in ((token_of_file, TOKEN, "short"), (passwords_of_file, "ann:secret\n\nbob:x", "ann")):
        file.write_text(good)
        file.chmod(0o640)
        with pytest.raises(InvalidOptions, match="chmod 600"):
            read(str(file))
        file.chmod(0o600)
        assert read(str(file)) == (TOKEN if read is token_of_file else {"ann": "secret", "bob": "x"})
        for text in (wrong, ""):
            file.write_text(text)
            with pytest.raises(InvalidOptions, match="secrets"):
                read(str(file))
    with pytest.raises(InvalidOptions, match="nowhere"):
        token_of_file(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--host", "::"], "--allow-host"),
        (["--host", "::", "--allow-host", "ops.example"], "is reached by others"),
        (["--host", "192.0.2.1", "--allow-host", "ops.example"], "is reached by others"),
        (["--trust-header", "X-User"], "need each other"),
        (["--trusted-proxy", "10.0.0.0/8"], "need each other"),
        (["--token-file", "a", "--basic-auth-file", "b"], "one of"),
        (["--token-file", "/nowhere"], "/nowhere"),
        (["--allow", "everything"], "everything"),
    ],
)
def test_what_the_command_refuses(arguments: list[str], why: str) -> None:
    result = CliRunner().invoke(main, ["console", *arguments])
    assert result.exit_code == MISUSED, result.output
    assert why in result.output


def test_the_command_logs_who_did_what(tmp_path: Path) -> None:
    """From a form of a page to a line on stderr; the user is the one who has logged in."""
    url = f"sqlite:///{tmp_path / 'affinity.db'}"
    assert CliRunner().invoke(main, ["migrate", "--url", url]).exit_code == 0
    users = tmp_path / "users"
    users.write_text("ann:secret")
    users.chmod(0o600)
    command = [
        sys.executable,
        "-m",
        "affinity",
        "console",
        "--url",
        url,
        "--port",
        "0",
        "--json",
        "--log-format",
        "json",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    options = ["--basic-auth-file", str(users), "--allow", "drain"]
    with subprocess.Popen([*command, *options], **pipes) as process:  # type: ignore[call-overload]
        try:
            document = "".join(iter(process.stdout.readline, "}\n"))
            base = json.loads(document + "}")["url"].rstrip("/")
            with httpx.Client(base_url=base, auth=("ann", "secret")) as http:
                assert http.get("/", auth=("ann", "wrong")).status_code == 401
                http.get("/workers")
                form = {"token": token_of(http.cookies[COOKIE]), "worker": "nowhere", "confirm": "nowhere"}
                assert http.post("/do/drain", data=form, headers={"origin": base}).status_code == 404
                assert http.post("/do/cancel", data=form, headers={"origin": base}).status_code == 403
        finally:
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=60)
    lines = [json.loads(line)["message"] for line in log.splitlines() if "affinity.console" in line]
    assert [line.partition(":")[0] for line in lines] == ["a request from 127.0.0.1 was refused", "'ann'"]
    assert lines[1].startswith("'ann': drain 'nowhere' was refused")
