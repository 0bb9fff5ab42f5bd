"""The console as a program of its own: which hosts it answers, and how a user logs in.

By default it listens on this machine only, and prints an address with a token that is used once: the browser gets a
cookie in exchange. On other addresses it needs a token file, a file of passwords, or a proxy that names the user.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
import stat
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, quote, urlsplit

import anyio
import uvicorn
from markupsafe import escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from affinity.console.requests import HEADERS, new_secret
from affinity.errors import InvalidOptions
from affinity.tasks import BackgroundTask

SAFE: Final = "/?=&%"
"""Characters of an address that are not escaped."""

USER: Final = "affinity.user"
"""Where the scope of a request has the name of the user."""

MIN_TOKEN: Final = 16
"""Characters of a token in a file."""

LOCAL: Final = ("127.0.0.1", "localhost", "::1")
"""Names under which a console of this machine is asked."""

STOP_SECONDS: Final = 1
"""For which live pages may delay the end."""

MAX_LOGINS: Final = 1_000
"""Cookies that are valid; a further login ends the oldest one."""

Identify = Callable[[Request], str | Response]
"""The name of the user of a request; or the answer in its place."""


class Gate:
    """Lets requests to known hosts, of known users, through to the console."""

    def __init__(self, app: ASGIApp, identify: Identify, hosts: Collection[str]) -> None:
        """``hosts``: values of the header Host, without port, that are answered; empty: any."""
        self._app, self._identify, self._hosts = app, identify, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        found: str | Response = _refusal(421, "this is not the name of the console: see --allow-host")
        if not self._hosts or _host_of(request) in self._hosts:
            found = self._identify(request)
        if isinstance(found, Response):
            found.headers.update(HEADERS)
            await found(scope, receive, send)
        else:
            await self._app({**scope, USER: found}, receive, send)


class TokenLogin:
    """A user who has the token gets a cookie, at ``/login?token=…``."""

    def __init__(self, token: str, user: str, *, once: bool, cookie: str = "affinity_console") -> None:
        self._token: str | None = token
        self._user, self._once, self._cookie = user, once, cookie
        self._cookies: dict[str, None] = {}
        self.used = asyncio.Event()
        """Set when a user has logged in."""

    def __call__(self, request: Request) -> str | Response:
        base = request.scope.get("root_path", "")
        if request.scope["path"] == f"{base}/login":
            return self._login(request, base)
        if request.cookies.get(self._cookie, "") in self._cookies:
            return self._user
        if request.method == "GET" and request.headers.get("sec-fetch-site") == "cross-site":
            return _load(f"{request.scope['path']}?{request.url.query}")  # a link elsewhere: without a strict cookie
        return _refusal(401, "log in with the address that `affinity console` has printed, or with the token file")

    def _login(self, request: Request, base: str) -> Response:
        given = parse_qs(request.url.query).get("token", [""])[0]
        if self._token is None or not hmac.compare_digest(given.encode(), self._token.encode()):
            return _refusal(401, "this token is not valid, or was used: start `affinity console` again for another one")
        if self._once:
            self._token = None
        self.used.set()
        secret = new_secret()
        self._cookies[secret] = None
        if len(self._cookies) > MAX_LOGINS:
            del self._cookies[next(iter(self._cookies))]
        answer = _load(f"{base}/")
        secure = request.url.scheme == "https"
        answer.set_cookie(self._cookie, secret, path=base or "/", httponly=True, samesite="strict", secure=secure)
        return answer


class BasicLogin:
    """Names and passwords, by HTTP basic authentication."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords

    def __call__(self, request: Request) -> str | Response:
        kind, _, value = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "basic":
            try:
                user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                user = password = ""
            known = self._passwords.get(user, new_secret())
            if hmac.compare_digest(known.encode(), password.encode()):
                return user
        answer = _refusal(401, "name and password, please")
        answer.headers["www-authenticate"] = 'Basic realm="affinity", charset="UTF-8"'
        return answer


class ProxyLogin:
    """A proxy has asked for the user, and names it in a header; from no other address the header counts."""

    def __init__(self, header: str, proxies: Collection[str]) -> None:
        """Raise `InvalidOptions` for a network that is none."""
        try:
            self._networks = [ipaddress.ip_network(each) for each in proxies]
        except ValueError as error:
            raise InvalidOptions(f"--trusted-proxy: {error}") from None
        self._header = header

    def __call__(self, request: Request) -> str | Response:
        address = None if request.client is None else ipaddress.ip_address(request.client.host)
        user = request.headers.get(self._header, "")
        if address is None or not user or not any(address in each for each in self._networks):
            return _refusal(401, "come through the proxy that knows you")
        return user


class _Server(uvicorn.Server):
    """A server whose program handles the signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serve_locally(app: ASGIApp, login: Identify) -> AsyncIterator[str]:
    """Serve a console on a free port of this machine, in the event loop of the caller; gives its address."""
    gate = Gate(app, login, LOCAL)
    config = uvicorn.Config(gate, port=0, log_level="warning", timeout_graceful_shutdown=STOP_SECONDS)
    socket = config.bind_socket()
    socket.listen()  # a browser may be faster than the server
    server = _Server(config)
    running = BackgroundTask(lambda: server.serve([socket]))
    try:
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        server.should_exit = True
        with anyio.CancelScope(shield=True):
            await running.join()


def _load(address: str) -> Response:
    """Have the browser load an address of this console as from a page of it, so that it sends its strict cookies. A
    redirect would count as a step from the page before.
    """
    html = f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(quote(address, safe=SAFE))}">'
    return HTMLResponse(html, headers={"cache-control": "no-store"})


def _host_of(request: Request) -> str | None:
    """The name in the header Host."""
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname
    except ValueError:
        return None


def _refusal(status: int, text: str) -> Response:
    return PlainTextResponse(text + "\n", status, {"cache-control": "no-store"})


def read_secret_file(path: str) -> str:
    """The text of a file that only its owner may read.

    Raises:
        InvalidOptions: it is not there, is empty, or others may read it.
    """
    file = Path(path)
    try:
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise InvalidOptions(f"{path}: other users may read or write it; chmod 600 {path}")
        text = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOptions(f"{path}: {error}") from None
    if not text:
        raise InvalidOptions(f"{path} is empty")
    return text


def token_of_file(path: str) -> str:
    """The token of a file.

    Raises:
        InvalidOptions: as `read_secret_file`; or it is short.
    """
    token = read_secret_file(path)
    if len(token) < MIN_TOKEN:
        raise InvalidOptions(f"{path}: a token has {MIN_TOKEN} characters at least")
    return token


def passwords_of_file(path: str) -> Mapping[str, str]:
    """Passwords by name: a line NAME:PASSWORD for each.

    Raises:
        InvalidOptions: as `read_secret_file`; or a line is none.
    """
    pairs = [line.partition(":") for line in read_secret_file(path).splitlines() if line.strip()]
    if not all(name and password for name, _, password in pairs):
        raise InvalidOptions(f"{path}: each line is NAME:PASSWORD")
    return {name: password for name, _, password in pairs}
