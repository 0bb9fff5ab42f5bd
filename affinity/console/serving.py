"""The console as a program of its own: which hosts it answers, and how a user logs in.

By default it listens on this machine only, and prints an address with a token that is used once: the browser gets a
cookie in exchange. On other addresses it needs a token file, a file of passwords, or a proxy that names the user.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import re
import socket
import stat
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import parse_qs, quote

import anyio
import uvicorn
from cachetools import LRUCache, TTLCache
from markupsafe import escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from affinity.console.connections import BACKLOG, BoundedProtocol
from affinity.console.requests import HEADERS, new_secret
from affinity.errors import InvalidOptions
from affinity.tasks import BackgroundTask

__all__ = ["TokenLogin", "serve_locally"]

logger: logging.Logger = logging.getLogger("affinity.console")

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

FREE_ATTEMPTS: Final = 3
"""Refused logins from one address that delay none that follows."""

MAX_DELAY: Final = 1.0
"""Seconds for which an attempt to log in waits at most, after refused ones from its address."""

MAX_QUEUE: Final = 10
"""Attempts of one address that wait; a further one is answered with 429."""

FORGET_SECONDS: Final = 900.0
"""Seconds after which refused logins of an address are forgotten."""

MAX_ADDRESSES: Final = 1_000
"""Addresses whose refused logins are counted."""

_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\s@/\\?#:\[\]]+)(:[0-9]*)?", re.IGNORECASE)


Ready: TypeAlias = Callable[[], Awaitable[bool]]


class Refusal(PlainTextResponse):
    """The answer to a request without a valid login. ``why`` is logged; empty: the user has not tried to log in."""

    def __init__(self, status: int, text: str, why: str = "") -> None:
        super().__init__(text + "\n", status, {"cache-control": "no-store"})
        self.why = why


class Login(ABC):
    """How users prove who they are."""

    @abstractmethod
    def identify(self, request: Request) -> str | Response:
        """Return the name of the user; or the answer in place of the page."""

    def guess(self, request: Request) -> str | None:
        """Return the secret of this request that somebody may try to guess; None: it has none."""
        return None


class Gate:
    """Lets requests to known hosts, of known users, through to the console."""

    def __init__(self, app: ASGIApp, login: Login, hosts: Collection[str], is_ready: Ready | None = None) -> None:
        """Args:
        app: the console.
        login: how users prove who they are.
        hosts: values of the header Host, without port, that are answered; empty: any.
        is_ready: answers probes at ``/ready``, and there are some at ``/live``, for any host and without a login.
        """
        self._app, self._login, self._hosts, self._is_ready = app, Attempts(login), hosts, is_ready

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        if self._is_ready is not None and scope["path"].removeprefix(_base_of(request)) in {"/live", "/ready"}:
            is_well = scope["path"].endswith("/live") or await self._is_ready()
            await PlainTextResponse("yes\n" if is_well else "no\n", 200 if is_well else 503)(scope, receive, send)
            return
        if self._hosts and _host_of(request) not in self._hosts:
            why = f"it asks for the host {request.headers.get('host', '')!r:.80}"
            found: str | Response = Refusal(421, "this is not the name of the console: see --allow-host", why)
        else:
            found = await self._login.identify(request)
        if isinstance(found, Response):
            _log_refusal(request, found)
            found.headers.update(HEADERS)
            await found(scope, receive, send)
        else:
            await self._app({**scope, USER: found}, receive, send)


class Attempts:
    """Slows down the attempts to log in from an address whose logins were refused: one at a time, with growing delays.

    A secret that was right before is not delayed, so that users behind the proxy of an attacker go on.
    """

    def __init__(self, login: Login) -> None:
        self._login = login
        self._refused: TTLCache[str, int] = TTLCache(MAX_ADDRESSES, FORGET_SECONDS)
        self._turns = LRUCache[str, asyncio.Lock](MAX_ADDRESSES)
        self._queues: dict[str, int] = {}
        self._good = LRUCache[bytes, None](MAX_LOGINS)

    async def identify(self, request: Request) -> str | Response:
        """Return the name of the user, or the answer in place of the page, after its turn has come."""
        guess, address = self._login.guess(request), _address_of(request)
        if guess is None or (digest := hashlib.sha256(guess.encode()).digest()) in self._good:
            return self._login.identify(request)
        if self._queues.get(address, 0) >= MAX_QUEUE:
            return Refusal(429, "too many attempts to log in: wait a minute", "too many attempts at once")
        self._queues[address] = self._queues.get(address, 0) + 1
        try:
            async with self._turns.setdefault(address, asyncio.Lock()):
                if digest not in self._good:
                    await asyncio.sleep(self._delay(address))
                found = self._login.identify(request)
                if isinstance(found, Refusal):
                    self._refused[address] = self._refused.get(address, 0) + 1
                else:
                    self._good[digest] = None
                return found
        finally:
            self._queues[address] -= 1
            if not self._queues[address]:
                del self._queues[address]

    def _delay(self, address: str) -> float:
        times = self._refused.get(address, 0) - FREE_ATTEMPTS
        return 0.0 if times < 0 else min(MAX_DELAY, 0.1 * 2.0 ** min(times, 10))


class TokenLogin(Login):
    """A user who has the token gets a cookie, at ``/login?token=…``.

    Cookies do not tell ports apart: each console has a cookie of its own name, so that two of one machine do not
    replace each other's.
    """

    def __init__(self, token: str, user: str, *, once: bool) -> None:
        self._token: str | None = token
        self._user, self._once, self._cookie = user, once, f"affinity_console_{new_secret()[:8]}"
        self._cookies: dict[str, None] = {}
        self.used = asyncio.Event()
        """Set when a user has logged in."""

    def guess(self, request: Request) -> str | None:
        return _token_in(request) if request.scope["path"] == f"{_base_of(request)}/login" else None

    def identify(self, request: Request) -> str | Response:
        base = _base_of(request)
        if request.scope["path"] == f"{base}/login":
            return self._login(request, base)
        if request.cookies.get(self._cookie, "") in self._cookies:
            return self._user
        if request.method == "GET" and request.headers.get("sec-fetch-site") == "cross-site":
            return _load(f"{request.scope['path']}?{request.url.query}")  # a link elsewhere: without a strict cookie
        return Refusal(401, "log in with the address that the command has printed, or with the token file")

    def _login(self, request: Request, base: str) -> Response:
        if self._token is None or not hmac.compare_digest(_token_in(request).encode(), self._token.encode()):
            text = "this token is not valid, or was used: start the command again for another one"
            return Refusal(401, text, "a token that was used, or is wrong")
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


class BasicLogin(Login):
    """Names and passwords, by HTTP basic authentication."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords

    def guess(self, request: Request) -> str | None:
        return _only(request, "authorization")

    def identify(self, request: Request) -> str | Response:
        given = _only(request, "authorization")
        kind, _, value = (given or "").partition(" ")
        user = password = ""
        if kind.lower() == "basic":
            with suppress(binascii.Error, UnicodeDecodeError):
                user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
            known = self._passwords.get(user, new_secret())
            if hmac.compare_digest(known.encode(), password.encode()):
                return user
        answer = Refusal(401, "name and password, please", f"wrong name or password, as {user!r:.80}" if given else "")
        answer.headers["www-authenticate"] = 'Basic realm="affinity", charset="UTF-8"'
        return answer


class ProxyLogin(Login):
    """A proxy has asked for the user, and names it in one header; from no other address the header counts."""

    def __init__(self, header: str, proxies: Collection[str]) -> None:
        """Raise `InvalidOptions` for a network that is none."""
        try:
            self._networks = [ipaddress.ip_network(network) for network in proxies]
        except ValueError as error:
            raise InvalidOptions(f"--trusted-proxy: {error}") from None
        self._header = header

    def identify(self, request: Request) -> str | Response:
        text = "come through the proxy that knows you"
        users = request.headers.getlist(self._header)
        if not self._is_proxy(_address_of(request)):
            return Refusal(401, text, f"{self._header} from an address that is no --trusted-proxy" if users else "")
        if len(users) > 1:
            why = f"{len(users)} headers {self._header}: the proxy must replace the one of the user"
            return Refusal(401, text, why)
        return users[0] if users and users[0] else Refusal(401, text, f"the proxy has set no {self._header}")

    def _is_proxy(self, text: str) -> bool:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:  # a socket of the file system, or no address at all
            return False
        return any(address in network for network in self._networks)


class _Server(uvicorn.Server):
    """A server whose program handles the signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serve_locally(app: ASGIApp, login: Login) -> AsyncIterator[str]:
    """Serve a console on a free port of this machine, in the event loop of the caller; gives its address."""
    gate = Gate(app, login, LOCAL)
    config = server_config(gate, "127.0.0.1", 0)
    listening = listen("127.0.0.1", 0)
    server = _Server(config)
    running = BackgroundTask(lambda: server.serve([listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        with anyio.CancelScope(shield=True):
            await running.join()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens: a browser may be faster than the server.

    Raises:
        InvalidOptions: the port is taken or another user's, or there is no such address here.
    """
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if host == "::":  # all addresses, of both families, whatever the system's default
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        found.bind((host, port))
        found.listen(BACKLOG)
    except OSError as error:
        found.close()
        raise InvalidOptions(f"--host {host} --port {port}: {error.strerror}: give another one") from error
    return found


def server_config(gate: Gate, host: str, port: int, root_path: str = "") -> uvicorn.Config:
    """The settings of the server of a console."""
    return uvicorn.Config(
        gate,
        host,
        port,
        http=BoundedProtocol,
        backlog=BACKLOG,
        root_path=root_path,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_SECONDS,
    )


def _load(address: str) -> Response:
    """Have the browser load an address of this console as from a page of it, so that it sends its strict cookies. A
    redirect would count as a step from the page before.
    """
    address = f"/{address.lstrip('/')}"  # two slashes would lead to another host
    html = f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(quote(address, safe=SAFE))}">'
    return HTMLResponse(html, headers={"cache-control": "no-store"})


def _only(request: Request, header: str) -> str | None:
    """The value of a header that a request has once; None: it is missing, or repeated."""
    values = request.headers.getlist(header)
    return values[0] if len(values) == 1 else None


def _host_of(request: Request) -> str | None:
    """The name in the header Host, without the port."""
    found = _HOST.fullmatch(_only(request, "host") or "")
    return None if found is None else found[1].strip("[]").lower()


def _base_of(request: Request) -> str:
    return str(request.scope.get("root_path", ""))


def _token_in(request: Request) -> str:
    return parse_qs(request.url.query).get("token", [""])[0]


def _address_of(request: Request) -> str:
    """The address of the client: an IPv4 address as such, also on a socket of both families."""
    return "" if request.client is None else request.client.host.removeprefix("::ffff:")


_LOGGED: Final[TTLCache[tuple[str, int], None]] = TTLCache(MAX_ADDRESSES, 1.0)
"""Addresses and status codes that were logged within the last second."""


def _log_refusal(request: Request, answer: Response) -> None:
    if (
        isinstance(answer, Refusal)
        and answer.why
        and (key := (_address_of(request), answer.status_code)) not in _LOGGED
    ):
        _LOGGED[key] = None
        logger.warning("a request from %s was refused: %s", key[0] or "an unknown address", answer.why)


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
    return check_token(read_secret_file(path), path)


def check_token(token: str, source: str) -> str:
    """Return a token that is long enough.

    Raises:
        InvalidOptions: it is short; the message names the source.
    """
    if len(token) < MIN_TOKEN:
        raise InvalidOptions(f"{source}: a token has {MIN_TOKEN} characters at least")
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
