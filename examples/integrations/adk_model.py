"""A model of Google's ADK without a network, in the place of "gemini-2.5-flash" or another one: it follows a script."""

from collections.abc import AsyncGenerator

from google.adk.models import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

CALLS = [("find_order", {"number": 7}), ("refund", {"number": 7, "cents": 4200})]


class Scripted(BaseLlm):
    """Looks the order up, pays back what it has cost, and says so."""

    model: str = "scripted"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the next line of the script, by the results that the model is given."""
        parts = [part for content in llm_request.contents for part in content.parts or []]
        results = [part.function_response.response for part in parts if part.function_response]
        if len(results) < len(CALLS):
            name, arguments = CALLS[len(results)]
            said = types.Part(function_call=types.FunctionCall(name=name, args=arguments))
        else:
            said = types.Part(text=f"I have looked at it: {(results[-1] or {})['result']}.")
        yield LlmResponse(content=types.Content(role="model", parts=[said]))


model = Scripted()
