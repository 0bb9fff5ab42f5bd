"""A model without a network, in the place of "openai:gpt-5" or another one: it follows a script."""

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel


def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Look the order up, pay back what it has cost, and say so."""
    results = [part.content for message in messages for part in message.parts if part.part_kind == "tool-return"]
    if not results:
        return ModelResponse(parts=[ToolCallPart("find_order", {"number": 7})])
    if len(results) == 1:
        return ModelResponse(parts=[ToolCallPart("refund", {"number": 7, "cents": 4200})])
    return ModelResponse(parts=[TextPart(f"I have looked at it: {results[1]}.")])


model = FunctionModel(respond)
