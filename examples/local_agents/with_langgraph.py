"""``python -m examples.local_agents.with_langgraph [--local]``: a graph of LangGraph."""

import anyio
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph

import affinity
from affinity.conversation import UserMessage
from affinity.integrations.langgraph import AffinitySaver, graph_conversations
from examples.local_agents.model import check_packages, reply
from examples.local_llm.model import Message


async def respond(state: MessagesState) -> dict[str, list[AIMessage]]:
    """Answer the conversation."""
    said = [
        Message(role="user" if isinstance(message, HumanMessage) else "assistant", content=message.text)
        for message in state["messages"]
    ]
    return {"messages": [AIMessage(await reply(said))]}


builder = StateGraph(MessagesState)
builder.add_node("respond", respond)
builder.add_edge(START, "respond")
builder.add_edge("respond", END)


async def main(url: str = "sqlite:///tea-clerk.db") -> None:
    """Ask twice."""
    check_packages()
    async with AffinitySaver(url) as saver:
        chats = graph_conversations(builder.compile(checkpointer=saver), kind="tea-clerk")
        app = affinity.App("tea-clerk")
        app.include(chats)
        async with affinity.Worker(app, url), affinity.Client(url) as client:
            for text in ("Which tea is black?", "And which one is green?"):
                print((await client.conversation(chats, "tea-1").ask(UserMessage(text))).text)


if __name__ == "__main__":
    anyio.run(main)
