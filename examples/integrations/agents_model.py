"""A model of the OpenAI Agents SDK without a network, in the place of "gpt-5" or another one: it follows a script."""

from typing import Any

from agents import Model, ModelResponse, Usage, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

set_tracing_disabled(True)

CALLS = [("find_order", '{"number": 7}'), ("refund", '{"number": 7, "cents": 4200}')]


class Scripted(Model):
    """Looks the order up, pays back what it has cost, and says so."""

    async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **options: Any) -> ModelResponse:
        """Return the next line of the script, by the results that the model is given."""
        items = input if isinstance(input, list) else []
        results = [item["output"] for item in items if item.get("type") == "function_call_output"]
        if len(results) < len(CALLS):
            name, arguments = CALLS[len(results)]
            call = ResponseFunctionToolCall(type="function_call", call_id=name, name=name, arguments=arguments)
            return ModelResponse(output=[call], usage=Usage(), response_id=None)
        text = ResponseOutputText(type="output_text", text=f"I have looked at it: {results[-1]}.", annotations=[])
        said = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, *given: Any, **options: Any) -> Any:
        """Not in this script."""
        raise NotImplementedError


model = Scripted()
