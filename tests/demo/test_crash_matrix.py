"""The app of the demo with a crash at each commit; and a copy of it with a defect, which that finds."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from types import ModuleType

import anyio
import pytest

from affinity import App
from affinity.demo import app as demo
from affinity.demo.conversations import NO_DIGEST, ChatMessage, extend_digest
from affinity.errors import CrashMatrixFailed
from affinity.testing import Env, crash_matrix
from affinity.testing.crashes import MODES
from tests.support.extras import needs

pytestmark = needs("chitchat_dataset")

RUN = "crashes"

CONVERSATIONS = {
    "ann": [ChatMessage("ann", ("hello",)), ChatMessage("bob", ("hi", "how are you?")), ChatMessage("ann", ("fine",))],
    "eve": [ChatMessage("eve", ("anybody there?",)), ChatMessage("bob", ("yes",))],
}


def make_app() -> App:
    return demo.build_app(RUN, demo.transcripts_of(RUN, max_sessions=10))


async def converse(env: Env) -> dict[str, demo.Summary]:
    found: dict[str, demo.Summary] = {}

    async def run_one(name: str, messages: Sequence[ChatMessage]) -> None:
        run = await env.client.start(demo.orchestration_name(RUN), len(messages), instance_id=name)
        for message in messages:
            await run.raise_event(demo.EVENT, message)
        found[name] = demo.Summary(**await run.wait())

    async with anyio.create_task_group() as tasks:
        for name, messages in CONVERSATIONS.items():
            tasks.start_soon(run_one, name, messages)
    return found


async def agree(env: Env, found: dict[str, demo.Summary]) -> None:
    """The transcripts, in the results and in the database, agree with the messages."""
    for name, messages in CONVERSATIONS.items():
        digest = reduce(extend_digest, messages, NO_DIGEST)
        assert found[name] == demo.Summary(len(messages), digest)
        record = await env.client.session_manager.show(name)
        assert demo.Transcript.model_validate_json(record.state).digest == digest


@pytest.fixture
def url(any_url: str) -> str | None:
    """Of a PostgreSQL server; None: an SQLite file."""
    return None if any_url.startswith("sqlite") else any_url


@pytest.mark.parametrize("any_url", ["sqlite", pytest.param("new", marks=pytest.mark.nightly)], indirect=True)
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_demo_passes(url: str | None) -> None:
    matrix = await crash_matrix(make_app, converse, agree, url=url, workers=2)
    turns = max(len(messages) for messages in CONVERSATIONS.values())
    assert matrix.commits >= turns, "the turns of one conversation follow each other; those of two may share a commit"
    assert matrix.hit >= turns * len(MODES), "a run may have fewer commits than the undisturbed one, but so many it has"


DEFECT = (
    "async with transcripts.open(ctx) as transcript:",
    "async with (opening := transcripts.open(ctx)) as transcript:",
    "digest, stats = transcript.digest, transcripts.stats",
    "digest, stats = transcript.digest, transcripts.stats\n            await opening.checkpoint()",
)
"""State that is saved apart from the result."""


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[ModuleType]:
    """A copy of the demo's app with the defect."""
    text = Path(demo.__file__).read_text()
    for right, wrong in zip(DEFECT[::2], DEFECT[1::2], strict=True):
        assert text.count(right) == 1
        text = text.replace(right, wrong)
    path = tmp_path / "copy_of_the_demo.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[path.stem]


@pytest.mark.slow
async def test_a_state_that_is_saved_outside_its_block_is_found(copy: ModuleType) -> None:
    def make() -> App:
        found: App = copy.build_app(RUN, copy.transcripts_of(RUN))
        return found

    with pytest.raises(CrashMatrixFailed, match=r"message \d meets a transcript of \d") as failed:
        await crash_matrix(make, converse, agree, kills=0, seed=1)
    assert {mode for _, mode in failed.value.points} <= {"before", "after", "lost"}
    assert failed.value.points
