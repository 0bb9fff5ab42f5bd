"""Models whose calls are steps."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import Any

from google.adk.models import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from typing_extensions import override

from affinity.integrations.adk.recording import run_here


class DurableLlm(BaseLlm):
    """A model whose calls in a block of `adk_run` are steps. Elsewhere, also in a tool, it is the inner model."""

    inner: BaseLlm

    def __init__(self, inner: BaseLlm) -> None:
        """Wrap a model."""
        fields: dict[str, Any] = {"model": inner.model, "inner": inner}
        super().__init__(**fields)

    @property
    @override
    def capabilities(self) -> Any:
        """What the inner model can do."""
        return self.inner.capabilities

    @override
    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the response that is recorded, or ask the inner model. Readers see the text by the wake's stream.

        Raises:
            NotSerializable, PayloadTooLarge: the response cannot be recorded.
            Exception: see `affinity.Wake.step`; or of the inner model.
        """
        run = run_here()
        if run is None:
            async for response in self.inner.generate_content_async(llm_request, stream):
                yield response
            return
        streams = run._streams
        for response in await run._ask_model(
            llm_request, lambda: self.inner.generate_content_async(llm_request, streams)
        ):
            yield response

    @override
    def connect(self, llm_request: LlmRequest) -> AbstractAsyncContextManager[Any]:
        """Connect the inner model, for a live conversation, which is not recorded."""
        return self.inner.connect(llm_request)
