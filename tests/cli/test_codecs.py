"""The command with the key, with another one and without a codec; and `affinity reencrypt`."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from affinity import Client, Worker
from affinity.cli.help import INTERRUPTED
from affinity.payloads.opening import CODEC_VARIABLE
from tests.cli.conftest import document, launch, refused, run, succeed
from tests.payloads.coded_app import app, greeting
from tests.payloads.rotating import PAUSE
from tests.payloads.xor import XorCodec

KEY, ROTATED, OTHER = "tests.payloads.xor:CODEC", "tests.payloads.rotating:codec", "tests.payloads.rotating:other"
NAMES = [f"name-{number}" for number in range(30)]


async def fill(url: str) -> None:
    """One instance that has ended, and many that have not begun."""
    async with Client(url, codec=XorCodec()) as client:
        async with Worker(app, url, codec=XorCodec()):
            handle = await client.start(greeting, "ann", instance_id="done")
            await handle.raise_event("more", "secret event")
            await handle.wait(timeout=30)
        for name in NAMES:
            await client.start(greeting, name, instance_id=name)


@pytest.fixture
def encoded(database: Path) -> Path:
    """The default database, with encoded payloads."""
    anyio.run(fill, f"sqlite:///{database}")
    return database


def check_label(database: Path) -> str:
    with closing(sqlite3.connect(database)) as connection:
        (value,) = connection.execute("SELECT check_value FROM database_identity").fetchone()
    return str(value)


def test_without_a_codec_the_key_is_named_in_place_of_a_payload(encoded: Path) -> None:
    shown = succeed("show", "done")
    assert "(encrypted, xor 90)" in shown
    assert "secret" not in shown
    events = succeed("history", "done")
    assert "encrypted, xor 90" in events
    assert "secret" not in events
    assert "done" in succeed("list")
    assert "this database are encoded" in refused(2, "start", "greeting", "--input", '"name"')


def test_with_the_codec_payloads_are_shown(encoded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CODEC_VARIABLE, KEY)
    assert "secret for ann" in succeed("show", "done")
    assert "secret event" in succeed("history", "done")


def test_with_another_key_nothing_is_done(encoded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CODEC_VARIABLE, OTHER)
    for command in (["show", "done"], ["list"], ["start", "greeting", "--input", '"name"'], ["reencrypt"]):
        assert "this codec cannot read what the workers of this database write, with xor 90" in refused(2, *command)


def test_reencrypt_says_what_it_would_do_and_does_it(encoded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no codec" in refused(2, "reencrypt")
    monkeypatch.setenv(CODEC_VARIABLE, ROTATED)
    planned = document("reencrypt", "--dry-run")
    number = planned["reencrypted"]
    assert number > len(NAMES)
    assert (planned["found"], planned["key"], planned["dry_run"]) == ({"xor 90": number}, "xor 7", True)
    result = run("reencrypt", "--batch", "7")
    assert result.exit_code == 0
    assert result.stderr.splitlines()[-1] == f"re-encoded {number} payloads with xor 7"
    rows = [line.split() for line in result.stdout.splitlines()[1:]]
    assert rows == [["xor", "7", "1"], ["xor", "90", str(number)]]  # one for the audit log
    again = document("reencrypt")
    assert (again["found"], again["reencrypted"], again["dry_run"]) == ({"xor 7": number + 2}, 0, False)
    audited = [row["details"] for row in document("audit")["entries"] if row["action"] == "reencrypt"]
    assert audited == [{"key": "xor 7"}] * 2
    monkeypatch.setenv(CODEC_VARIABLE, KEY)
    assert "with xor 7" in refused(2, "show", "done")


def test_reencrypt_goes_on_after_ctrl_c(encoded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done stays done; the key that writes is asked for only after the end."""
    monkeypatch.setenv(CODEC_VARIABLE, ROTATED)
    number = document("reencrypt", "--dry-run")["reencrypted"]
    value = check_label(encoded)
    variables = {CODEC_VARIABLE: ROTATED, PAUSE: "0.1"}
    with launch(
        "reencrypt", "--batch", "2", "--json", variables=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        while not (line := process.stderr.readline()).startswith("re-encoded ") or line == "re-encoded 0 …\n":
            assert process.poll() is None, line
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (INTERRUPTED, "")
    assert "before it ended; these stay so, and the command may be started again\n" in stderr
    assert check_label(encoded) == value
    left = document("reencrypt", "--dry-run")
    done = left["found"]["xor 7"] - 1  # one for the audit log
    assert 0 < done < number
    assert left["reencrypted"] == number - done

    with launch("reencrypt", "--json", variables={CODEC_VARIABLE: ROTATED}, stdout=subprocess.PIPE) as process:
        rest = json.loads(process.communicate(timeout=60)[0])
    assert process.returncode == 0
    assert (rest["reencrypted"], rest["unreadable"], rest["busy"]) == (number - done, 0, 0)
    assert document("reencrypt", "--dry-run")["found"] == {"xor 7": number + 2}
    assert "secret for ann" in succeed("show", "done")
