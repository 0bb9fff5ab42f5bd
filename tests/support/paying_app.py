"""An app whose activity pays, in a table of another database, by `affinity.once`."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from typing import Any, Final

import psycopg

import affinity
from affinity.provider.urls import sqlite_path

VARIABLE: Final = "AFFINITY_TEST_SHOP"
"""Environment variable with the URL of the shop; a leading ``django+`` has Django connect."""

RETRY: Final = affinity.RetryPolicy(max_attempts=50, initial_interval=0.1, max_interval=1.0)

app = affinity.App("paying")

_own: Final = threading.local()


@app.activity
def pay(ctx: affinity.ActivityContext, order: int) -> int:
    """Pay, in a thread with a connection of its own. The pauses let a signal find it in the block and behind it."""
    connection = _connection()
    with affinity.once(ctx, connection, int) as step:
        if not step.is_recorded:
            _insert(connection, order)
            time.sleep(random.uniform(0, 0.05))
            step.result = order
    time.sleep(random.uniform(0, 0.05))
    paid: int = step.result
    return paid


@app.orchestration
async def order(ctx: affinity.OrchestrationContext, number: int) -> int:
    """Pay one order."""
    return await ctx.schedule_activity(pay, number, retry=RETRY)


def _insert(connection: Any, order: int) -> None:
    text = f"INSERT INTO payments (reference) VALUES ('{order}')"
    if not hasattr(connection, "vendor"):
        connection.execute(text)
        return
    with connection.cursor() as cursor:
        cursor.execute(text)


def _connection() -> Any:
    if not hasattr(_own, "connection"):
        _own.connection = _connect(os.environ[VARIABLE])
    return _own.connection


def _connect(url: str) -> Any:
    if url.startswith("django+"):
        return _connect_django(url.removeprefix("django+"))
    if (path := sqlite_path(url)) is not None:
        return sqlite3.connect(path, timeout=20)
    return psycopg.connect(url)


_SET_UP: Final = threading.Lock()


def _connect_django(url: str) -> Any:
    import django
    import django.conf

    with _SET_UP:
        if not django.conf.settings.configured:
            shop = _django_database(url)
            django.conf.settings.configure(DATABASES={"default": shop}, USE_TZ=True)
            django.setup()
    from django.db import connection

    return connection


def _django_database(url: str) -> dict[str, Any]:
    if (path := sqlite_path(url)) is not None:
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": {"timeout": 20}}
    found = psycopg.conninfo.conninfo_to_dict(url)
    shop = {"ENGINE": "django.db.backends.postgresql", "NAME": found["dbname"], "USER": found.get("user", "")}
    return {**shop, "HOST": found.get("host", ""), "PORT": found.get("port", "")}
