"""Scripts with a sync client, as processes: their ends, Ctrl-C, forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.support.worker_processes import ROOT

HEAD = """
import asyncio, os, sys, threading
from affinity.sync.loop import current_loop
from affinity import sync
from contextlib import suppress
from affinity.errors import ClientError, ClientForked
from tests.sync.application import greet, listen
client = sync.Client(os.environ["AFFINITY_URL"])

def waits():
    with suppress(ClientError):
        client.start(listen).wait()

def sleeps():
    with suppress(ClientError):
        current_loop().run(asyncio.sleep, 3600)

"""


def run(url: str, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", HEAD + code],
        cwd=ROOT,
        env=os.environ | {"AFFINITY_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.nightly_cases("new")
@pytest.mark.parametrize(
    "end",
    [
        pytest.param("", id="left open"),
        pytest.param("del run, client", id="forgotten"),
        pytest.param("client.close(); client.close()", id="closed"),
        pytest.param("threading.Thread(target=waits, daemon=True).start()", id="in use"),
        pytest.param("threading.Thread(target=sleeps, daemon=True).start()", id="in a call without an end"),
    ],
)
def test_a_script_ends_without_a_word(url: str, end: str) -> None:
    done = run(url, f"run = client.start(greet, 'Ada')\nprint(run.wait(timeout=30))\n{end}")
    assert (done.stdout, done.stderr, done.returncode) == ("HELLO ADA\n", "", 0)


def test_ctrl_c_ends_a_script_that_waits(file_url: str) -> None:
    code = HEAD + "run = client.start(listen)\nprint('waits', flush=True)\nrun.wait()"
    script = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"AFFINITY_URL": file_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with script:
        assert script.stdout is not None
        assert script.stdout.readline() == "waits\n"
        script.send_signal(signal.SIGINT)
        _, errors = script.communicate(timeout=30)
    assert script.returncode != 0
    assert errors.splitlines()[-1] == "KeyboardInterrupt"


FORK = """
def in_child(work):
    if not (child := os.fork()):
        try:
            work()
            sys.stdout.flush()
        finally:
            os._exit(0)
    os.waitpid(child, 0)

def greets():
    print(client.start(greet, "child").wait(timeout=30))

def is_refused():
    for call in (client.workers, run.status, lambda: next(feed), client.close):
        try:
            print(call())
        except ClientForked as error:
            print("forked")
"""


@pytest.mark.slow_cases(r"\[new")
@pytest.mark.slow_cases(r"\[sqlite")
def test_a_client_that_was_not_used_opens_in_each_child(url: str) -> None:
    """As with the processes of a web server, or of Celery."""
    done = run(url, f"{FORK}\nin_child(greets)\nin_child(greets)\ngreets()")
    assert (done.stdout, done.stderr) == ("HELLO CHILD\n" * 3, "")


def test_a_client_that_was_open_before_a_fork_says_so_and_stays_the_parents(url: str) -> None:
    """Also what it has given."""
    begin = "run = client.start(greet, 'Ada')\nrun.wait(timeout=30)\nfeed = client.list_instances()\n"
    done = run(url, f"{FORK}\n{begin}in_child(is_refused)\nprint(next(feed) == run.status())")
    assert (done.stdout, done.stderr) == ("forked\nforked\nforked\nNone\nTrue\n", "")


@pytest.mark.slow_cases(r"\[new")
@pytest.mark.slow_cases(r"\[sqlite")
def test_another_client_opens_behind_a_fork(url: str) -> None:
    """On SQLite when the former one was closed before, as its locks are of the parent."""
    another = "def other():\n    try:\n        print(sync.Client(os.environ['AFFINITY_URL']).start(greet, 'x').outcome)"
    refused = f"{another}\n    except ClientForked as error:\n        print('close it before the fork' in str(error))"
    done = run(url, f"{FORK}\n{refused}\nclient.workers()\nin_child(other)\nprint(len(client.workers()))")
    assert done.stdout == ("True\n1\n" if url.startswith("sqlite") else "created\n1\n")
    again = "client.workers(); client.close()\nclient = sync.Client(os.environ['AFFINITY_URL'])"
    assert run(url, f"{FORK}\n{again}\nin_child(greets)").stdout == "HELLO CHILD\n"
