import anyio
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

import affinity
from affinity.conversation import UserMessage
from affinity.integrations.langgraph import AffinitySaver, graph_conversations


def model(messages: list[AnyMessage]) -> AIMessage:
    """Stands for a language model."""
    if isinstance(messages[-1], ToolMessage):
        return AIMessage(f"Done: {messages[-1].text}.")
    call = {"name": "refund", "args": {"cents": 5000}, "id": f"call-{len(messages)}"}
    return AIMessage("", tool_calls=[call])


def refund(cents: int) -> str:
    """Pay money back."""
    return f"{cents} cents are on their way"


async def think(state: MessagesState) -> dict[str, list[AIMessage]]:
    """Ask the model."""
    return {"messages": [model(state["messages"])]}


async def act(state: MessagesState) -> dict[str, list[ToolMessage]]:
    """Call the tool that the model wants, if a person allows it."""
    last = state["messages"][-1]
    assert isinstance(last, AIMessage)
    (call,) = last.tool_calls
    text = refund(**call["args"]) if interrupt({"may I": call["name"], **call["args"]}) else "a person has refused it"
    return {"messages": [ToolMessage(text, tool_call_id=call["id"])]}


def route(state: MessagesState) -> str:
    """Go on with the tool, or end."""
    last = state["messages"][-1]
    return "act" if isinstance(last, AIMessage) and last.tool_calls else END


builder = StateGraph(MessagesState)
builder.add_node("think", think)
builder.add_node("act", act)
builder.add_edge(START, "think")
builder.add_conditional_edges("think", route, ["act", END])
builder.add_edge("act", "think")
graph = builder.compile(checkpointer=AffinitySaver("sqlite:///langgraph.db"))
app = affinity.App("chat")
app.include(chats := graph_conversations(graph, kind="chat"))


async def main(url: str = "sqlite:///langgraph.db") -> None:
    """A person allows what the model wants to do."""
    async with affinity.Worker(app, url), affinity.Client(url) as client:
        talk = client.conversation(chats, "chat-7")
        reply = await talk.ask(UserMessage("I want my money back"))
        (request,) = await talk.requests()
        print(reply.stop_reason, request.event.model_dump()["arguments"])
        seq = await talk.answer(request.request_id, result=True)
        print((await talk.reply(seq)).text)


if __name__ == "__main__":
    anyio.run(main)
