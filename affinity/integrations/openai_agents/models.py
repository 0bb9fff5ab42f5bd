"""Models whose calls are steps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from agents import (
    AgentOutputSchemaBase,
    Handoff,
    Model,
    ModelProvider,
    ModelResponse,
    ModelSettings,
    ModelTracing,
    Tool,
    TResponseInputItem,
    Usage,
)
from agents.exceptions import ModelBehaviorError
from agents.items import TResponseStreamEvent
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest
from openai.types.responses import Response, ResponseCompletedEvent
from typing_extensions import override

from affinity.integrations.agent_runs import current_unit
from affinity.integrations.openai_agents.recording import run_here


class DurableModel(Model):
    """A model whose calls in a block of `openai_run` are steps. Elsewhere, also in a tool, it is the inner model."""

    def __init__(self, inner: Model) -> None:
        """Wrap a model."""
        self.inner: Model = inner

    @override
    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
        tracing: ModelTracing,
        **options: Any,
    ) -> ModelResponse:
        """Return the response that is recorded, or ask the inner model.

        Raises:
            NotSerializable, PayloadTooLarge: the response cannot be recorded.
            Exception: see `affinity.Wake.step`; or of the inner model.
        """
        run = run_here()
        given = (system_instructions, input, model_settings, tools, output_schema, handoffs, tracing)
        if run is None:
            return await self.inner.get_response(*given, **options)
        if run._streams:
            return await run._ask_model(input, tools, lambda: _streamed(self.inner.stream_response(*given, **options)))
        return await run._ask_model(input, tools, lambda: self.inner.get_response(*given, **options))

    @override
    async def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
        tracing: ModelTracing,
        **options: Any,
    ) -> AsyncIterator[TResponseStreamEvent]:
        """Yield the events of the inner model; in a step, its end alone: readers see the text by the wake's stream.

        Raises:
            Exception: see `get_response`.
        """
        run = run_here()
        given = (system_instructions, input, model_settings, tools, output_schema, handoffs, tracing)
        if run is None:
            async for event in self.inner.stream_response(*given, **options):
                yield event
            return
        found = await run._ask_model(input, tools, lambda: _streamed(self.inner.stream_response(*given, **options)))
        yield _completed(found)

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        """Return the advice of the inner model."""
        return self.inner.get_retry_advice(request)

    async def close(self) -> None:
        """Close the inner model."""
        await self.inner.close()


class DurableProvider(ModelProvider):
    """A provider whose models are `DurableModel`."""

    def __init__(self, inner: ModelProvider) -> None:
        """Wrap a provider."""
        self.inner: ModelProvider = inner

    def get_model(self, model_name: str | None) -> Model:
        """Return a model of the inner provider."""
        return DurableModel(self.inner.get_model(model_name))

    async def aclose(self) -> None:
        """Close the inner provider."""
        await self.inner.aclose()


async def _streamed(events: AsyncIterator[TResponseStreamEvent]) -> ModelResponse:
    """Stream the text of a model to readers, and return its response."""
    unit, items = current_unit.get(), list[Any]()
    async for event in events:
        match event.type:
            case "response.output_text.delta" if unit is not None:
                unit.wake.stream(event.delta)
            case "response.output_item.done":
                items.append(event.item)
            case "response.completed":
                return _response_of(event.response, items)
            case "response.failed" | "response.incomplete" | "error":
                raise ModelBehaviorError(f"the model's stream has ended by {event.type!r}")
            case _:
                pass
    raise ModelBehaviorError("the model's stream has ended without a response")


def _response_of(response: Response, items: list[Any]) -> ModelResponse:
    """Return the end of a stream as a response. Some models give the items of a response only before its end."""
    usage = Usage()
    if (used := response.usage) is not None:
        usage = Usage(
            requests=1,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            total_tokens=used.total_tokens,
            input_tokens_details=used.input_tokens_details,
            output_tokens_details=used.output_tokens_details,
        )
    return ModelResponse(output=list(response.output) or items, usage=usage, response_id=response.id)


def _completed(found: ModelResponse) -> ResponseCompletedEvent:
    """Return a response as the end of a stream."""
    used = found.usage
    usage = {
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "total_tokens": used.total_tokens,
        "input_tokens_details": used.input_tokens_details.model_dump(),
        "output_tokens_details": used.output_tokens_details.model_dump(),
    }
    response = {
        "id": found.response_id or "",
        "object": "response",
        "created_at": 0,
        "model": "",
        "output": [item.model_dump(mode="json", by_alias=True, exclude_unset=True) for item in found.output],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage if used.requests else None,
    }
    event: dict[str, Any] = {"type": "response.completed", "sequence_number": 0, "response": response}
    return ResponseCompletedEvent.construct(None, **event)
