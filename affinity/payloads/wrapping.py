"""A provider whose payloads are encoded at the database's edge: all code above it sees plain ones."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from operator import attrgetter
from typing import Any, Final, cast

from affinity import redaction
from affinity.blob import MARK
from affinity.limits import MAX_BATCH_BYTES
from affinity.payloads.check_values import check_keys
from affinity.payloads.contract import PayloadCodec
from affinity.payloads.forms import Form
from affinity.payloads.pipeline import Pipeline
from affinity.payloads.table import Encoded, VerbPayloads, all_verbs
from affinity.payloads.vault import Vault
from affinity.provider.contract import HistoryCursor, HistoryPage, Provider

_NOTHING: Final = VerbPayloads()


class _Coded:
    """Forwards everything, and encodes the arguments and decodes the results of coroutine methods."""

    def __init__(self, target: Any, pipeline: Pipeline) -> None:
        self._target = target
        self._pipeline = pipeline

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if inspect.iscoroutinefunction(found):
            found = self._coded(name, found)
            setattr(self, name, found)  # the next look-up does not come here
        return found

    def _coded(self, name: str, verb: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        payloads = all_verbs().get(name, _NOTHING)
        pipeline = self._pipeline

        @wraps(verb)
        async def coded(*args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(payloads.parameters, args, strict=False)), **kwargs}
            if payloads.arguments:
                coded_arguments = await _encode_arguments(pipeline, payloads.arguments, given)
                result = await verb(**coded_arguments)
            else:
                stored, named = await pipeline.encode((list(args), kwargs))
                result = await verb(*stored, **named)
            result = await _decode_result(pipeline, payloads, given, result)
            if payloads.amend is not None:
                result = await payloads.amend(self, given[payloads.parameters[0]], result)
            return result

        return coded


class CodedProvider(_Coded):
    """A provider with a pipeline of payloads, and the blobs of its database, if it was given a blob store."""

    def __init__(self, target: Any, pipeline: Pipeline, vault: Vault | None = None) -> None:
        super().__init__(target, pipeline)
        self.vault = vault
        if pipeline.codec is not None:
            redaction.begin(self)

    async def aclose(self) -> None:
        """See `ProviderConnection.aclose`."""
        try:
            await self._target.aclose()
        finally:
            redaction.end(self)

    async def read_history(self, cursors: Sequence[HistoryCursor], *, max_bytes: int = MAX_BATCH_BYTES) -> Any:
        """See `ProviderConnection.read_history`; what is in the blob store counts too."""
        pages = await self._target.read_history(cursors, max_bytes=max_bytes)
        if self.vault is not None:
            pages = _bounded(pages, max_bytes)
        return await self._pipeline.decode_each(pages, [cursor.instance_id for cursor in cursors])

    @property
    def states(self) -> Any:
        """The records of session state."""
        return _Coded(self._target.states, self._pipeline)

    @property
    def stored(self) -> Any:
        """The provider whose payloads are as they are stored."""
        return self._target

    @property
    def has_codec(self) -> bool:
        """Whether it decodes."""
        return self._pipeline.codec is not None

    @property
    def label(self) -> str:
        """See `Pipeline.label`."""
        return self._pipeline.label

    async def keep_check_value(self) -> None:
        """Encode the check value of the database with the key that writes: see `affinity.payloads.check_values`."""
        if (codec := self._pipeline.codec) is not None:
            await check_keys(self._target, codec, await self._target.read_identity(), keep=True)

    async def recode(self, stored: str | bytes, field: str) -> str | bytes:
        """See `Pipeline.recode`."""
        return await self._pipeline.recode(stored, field)

    async def encode_text(self, text: str, *, form: Form, name: str, scope: str) -> str:
        """Return a text as it is stored, for what a guest writes within a verb: see `Encoded`."""
        found: str = await self._pipeline.encode_value(Encoded(form, name=name), text, scope)
        return found


def with_codec(
    provider: Provider,
    codec: PayloadCodec | None,
    database: str,
    vault: Vault | None = None,
    *,
    writes_plain: bool = False,
) -> Provider:
    """Return the provider with its payloads encoded, and the large ones in a blob store.

    Args:
        provider: without a codec.
        codec: None: what is encoded cannot be read.
        database: its name, for the contexts of payloads.
        vault: keeps large payloads. None: what is in a blob store cannot be read.
        writes_plain: whether payloads are written without a codec; otherwise none is.
    """
    pipeline = Pipeline(codec, database, provider, vault=vault, writes_plain=writes_plain)
    return cast("Provider", CodedProvider(provider, pipeline, vault))


_OFFLOADED: Final = re.compile(rf"\.{MARK}[0-9a-f]{{64}}:([0-9]+)")
"""The reference of a payload in the blob store. A `Blob` among the data of an event has no dot before it."""


def _bounded(pages: Sequence[HistoryPage], max_bytes: int) -> Sequence[HistoryPage]:
    """Return pages whose events have at most so many bytes once they are read, but at least one each."""
    found, left = [], max_bytes
    for page in pages:
        for kept, event in enumerate(page.events):
            left -= len(event) + sum(int(size) for size in _OFFLOADED.findall(event))
            if kept and left < 0:
                found.append(replace(page, events=page.events[:kept], more=True))
                break
        else:
            found.append(page)
    return found


async def _encode_arguments(
    pipeline: Pipeline, arguments: Mapping[str, Encoded], given: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        **given,
        **{
            name: await pipeline.encode_value(encoded, given[name], given[encoded.scope])
            for name, encoded in arguments.items()
            if name in given
        },
    }


async def _decode_result(pipeline: Pipeline, payloads: VerbPayloads, given: Mapping[str, Any], result: Any) -> Any:
    if payloads.results is None or result is None:
        return await pipeline.decode(result)
    owners = given[payloads.results]
    if isinstance(owners, str):
        return await pipeline.decode(result, owners)
    scopes: Sequence[Any] = [attrgetter(payloads.scope)(owner) for owner in owners] if payloads.scope else [*owners]
    return await pipeline.decode_each(result, scopes)
