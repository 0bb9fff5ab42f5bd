"""The URL of a database: libpq's, with parameters for the schema and for a direct URL; and the settings of its
connections.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, LiteralString
from urllib.parse import unquote

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo
from psycopg.pq.abc import PGconn

from affinity.errors import InvalidUrl
from affinity.provider.urls import MALFORMED

DEFAULT_SCHEMA: Final = "affinity"

DIRECT_VARIABLE: Final = "AFFINITY_DIRECT_URL"
"""Environment variable with the direct URL of the database that ``AFFINITY_URL`` names."""

SCHEMES: Final = frozenset({"postgres", "postgresql"})

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")  # 63 bytes is PostgreSQL's own limit

_OURS: Final = frozenset({"schema", "direct"})

_UNQUOTED: Final = re.compile(r"[/?@]")  # of a URL that stands in another one

_QUOTED: Final = re.compile('".*"', re.DOTALL)  # libpq quotes what it does not understand, which may be a password

_NETWORK: Final = {
    "connect_timeout": 10,
    # A cut network is noticed within half a minute, also while nothing is sent.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,  # milliseconds
}

_SAFETY: Final = {
    # No statement takes that long; one that did would delay others.
    "statement_timeout": "30s",
    # No operation leaves a transaction open; if one did, it must not hold its locks for long.
    "idle_in_transaction_session_timeout": "10s",
    # A connection that waits for its next call, or for a notification, is idle for long.
    "idle_session_timeout": "0",
    # As `_NETWORK`, on the server: transactions of a host that is gone end within a worker's lease.
    "tcp_keepalives_idle": "5s",
    "tcp_keepalives_interval": "3s",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "14s",
}

PINNED: Final = {
    # The form of values in text, in both directions.
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "timezone_abbreviations": "Default",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "array_nulls": "on",
    "xmlbinary": "base64",
    "xmloption": "content",
    "lc_monetary": "C",
    "lc_numeric": "C",
    "lc_time": "C",
    # How the text of a statement is read, and shown.
    "standard_conforming_strings": "on",
    "backslash_quote": "safe_encoding",
    "transform_null_equals": "off",
    "quote_all_identifiers": "off",
    # Each statement needs a snapshot of its own, and must check a row again that changed while it waited for the lock.
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    # Who may write is a matter of rights. A client locks a row when it connects.
    "default_transaction_read_only": "off",
    # What statements do: triggers fire, views and rows are visible, or it is an error.
    "session_replication_role": "origin",
    "row_security": "on",
    "restrict_nonsystem_relation_kind": "",
    # `statement_timeout` bounds a transaction of one statement, and a migration takes its time.
    "transaction_timeout": "0",
}
"""Settings on which our statements and values rely: whatever the server, the database, the role, the URL or the
environment (PGTZ, PGDATESTYLE, PGOPTIONS) says. Each new connection sets them, in one message (`PIN`).
"""

MARKER: Final = ("affinity.options", "kept")
"""A setting of each connection: without it, a pooler has ignored the settings."""

PIN: Final[LiteralString] = """
SELECT pg_backend_pid(), current_setting(%(marker)s, true), count(set_config(name, value, false))
FROM unnest(%(names)s::text[], %(values)s::text[]) AS pinned (name, value)
WHERE value <> current_setting(name, true)
    AND current_setting(%(marker)s, true) = %(kept)s AND pg_backend_pid() = %(pid)s"""
"""Changes the settings that differ. A setting that the server does not know is left out. Through a pooler it changes
nothing, which the marker or the process id shows.
"""

HOT: Final = {
    # Queues fill and drain faster than statistics are collected, so statistics are always wrong. A plan is therefore
    # made once, without the values, and only of steps that are right for queues of any size: index scans, nested loops.
    # tests/provider/test_postgres_plans.py checks the plans.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    # A batch is split when a row of it is held for that long. Of ours only rare, large steps hold one longer.
    "lock_timeout": "200ms",
}
"""Settings under which the calls of the hot loop run."""

BRIEF: Final = {**HOT, "lock_timeout": "10ms"}
"""Settings under which calls of the hot loop run that are tried again, with others behind them."""

COLD: Final = {
    # Unused filters of a listing must not keep it from the index of a used one.
    "plan_cache_mode": "force_custom_plan",
    "enable_seqscan": "on",
    # The sweep reads few rows, in tables whose statistics are always wrong.
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "lock_timeout": "5s",
}
"""Settings under which listings and the sweep run. It has the names of `HOT`: each replaces the other."""


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL."""

    conninfo: dict[str, str] = field(repr=False)  # may hold a password
    schema: str
    direct: Target | None = None  # past a pooler

    @classmethod
    def parse(cls, url: str) -> Target:
        """Split our parameters from libpq's. The direct URL is that of ``direct=``, or else of `DIRECT_VARIABLE`, if
        this is the URL of ``AFFINITY_URL``. It has the same schema.

        Raises:
            InvalidUrl: it, or its direct URL, is malformed, or its schema is not a plain identifier.
        """
        if _is_ambiguous(url):
            raise InvalidUrl(MALFORMED)
        plain, ours = _take_ours(url)
        direct = _quoted_url(ours["direct"]) if "direct" in ours else _direct_of_environment(url)
        found = cls._parse_plain(plain, unquote(ours.get("schema", DEFAULT_SCHEMA)))
        if direct is None:
            return found
        try:
            return replace(found, direct=cls._parse_direct(direct, found.schema))
        except InvalidUrl as error:
            raise InvalidUrl(f"the direct URL: {error}") from None

    @classmethod
    def _parse_direct(cls, url: str, schema: str) -> Target:
        if _is_ambiguous(url):
            raise InvalidUrl(MALFORMED)
        plain, ours = _take_ours(url)
        if "direct" in ours:
            raise InvalidUrl("it has no direct URL of its own")
        if unquote(ours.get("schema", schema)) != schema:
            raise InvalidUrl("it names another schema: leave schema= out of it")
        if _scheme(plain) not in SCHEMES:
            raise InvalidUrl("it is postgresql://user@host/database")
        return cls._parse_plain(plain, schema)

    @classmethod
    def _parse_plain(cls, url: str, schema: str) -> Target:
        if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
            raise InvalidUrl(f"schema={schema!r}: use small letters, digits and _, at most 63, not starting with pg_")
        conninfo, wrong = _parse(url)
        if wrong:  # not as a consequence of libpq's error, which quotes what it does not understand
            raise InvalidUrl(f"not a PostgreSQL URL: {wrong}")
        return cls({key: str(value) for key, value in conninfo.items()}, schema)

    @property
    def with_sessions(self) -> Target:
        """Where a connection has a session of the server: the direct one, if there is one."""
        return self.direct or self

    @property
    def name(self) -> str:
        """How messages call the database: they may be read by strangers, so nothing of the URL is in them."""
        return "PostgreSQL"

    def place(self, tried: PGconn | None = None) -> str:
        """Hosts and ports, and nothing else of the URL: for the operator who asks why there is no connection.

        Args:
            tried: what was tried to connect last. It knows what a URL without a host leaves to the environment.
        """
        given, defaults = self.conninfo, _defaults()
        hosts = next(filter(None, (each.get(key) for each in (given, defaults) for key in ("host", "hostaddr"))), "")
        ports = given.get("port") or defaults.get("port", "")
        if not hosts and tried is not None:
            hosts, ports = tried.host.decode(), tried.port.decode()
        names = (hosts or "its socket").split(",")
        numbers = ports.split(",") if "," in ports else [ports] * len(names)
        return ", ".join(f"{_bracketed(host)}:{port or 5432}" for host, port in zip(names, numbers, strict=False))

    def without_names(self, text: str) -> str:
        """The text without the user, the hosts and the password of this URL."""
        for key in ("user", "host", "hostaddr", "password"):
            for value in filter(None, self.conninfo.get(key, "").split(",")):
                text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "…", text)
        return text

    def without_passwords(self, text: str) -> str:
        """The text without the passwords of this URL."""
        for key, value in self.conninfo.items():
            if key.endswith("password") and value:
                text = text.replace(value, "…")
        return text

    def connect(self, application_name: str, settings: Mapping[str, str]) -> str:
        """The database that psycopg connects to. Settings travel with the connection request: they cost no round trip.

        Settings of the network in the URL, and timeouts in its ``options``, override the defaults. `PINNED` settings
        follow once it is connected.
        """
        ours = {"search_path": self.schema, MARKER[0]: MARKER[1], **settings}
        options = f"{_options(_SAFETY)} {self.conninfo.get('options', '')} {_options(ours)}"
        given = {key: value for key, value in self.conninfo.items() if key != "options"}
        defaults = {**_NETWORK, "application_name": application_name}
        return make_conninfo("", **{**defaults, **given, "client_encoding": "UTF8", "options": options})


def _defaults() -> dict[str, str]:
    """The options that libpq takes from the environment."""
    return {each.keyword.decode(): each.val.decode() for each in Conninfo.get_defaults() if each.val}


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _parse(url: str) -> tuple[dict[str, Any], str]:
    """The options that libpq finds in the URL, and its error, without text of the URL."""
    try:
        return conninfo_to_dict(url), ""
    except ProgrammingError as error:
        return {}, _QUOTED.sub("…", str(error)).strip() or "malformed"


def _is_ambiguous(url: str) -> bool:
    """Return whether libpq would take a part of a password with an @, a / or a ? for a host, a port or a database."""
    authority, _, path = url.partition("://")[2].partition("/")
    user = authority.rpartition("@")[0]
    return "@" in user or "?" in user or "@" in path.partition("?")[0]


def _options(settings: Mapping[str, str]) -> str:
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


def _take_ours(url: str) -> tuple[str, dict[str, str]]:
    """The URL without our parameters, and their values as written. By hand: in libpq's URLs a ``+`` is a plus."""
    plain, _, query = url.partition("?")
    words = [word.partition("=") for word in query.split("&") if word]
    rest = "&".join("".join(word) for word in words if word[0] not in _OURS)
    return plain + ("?" + rest if rest else ""), {name: value for name, _, value in words if name in _OURS}


def _quoted_url(value: str) -> str:
    """The URL that is the value of a parameter. One that is not quoted would lose its end, and keep its password."""
    if _UNQUOTED.search(value):
        raise InvalidUrl("direct=: quote the whole URL, as urllib.parse.quote(url, safe='') does: / by %2F, & by %26")
    return unquote(value)


def _direct_of_environment(url: str) -> str | None:
    return (os.environ.get(DIRECT_VARIABLE) or None) if url == os.environ.get("AFFINITY_URL") else None


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower()
