from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph

from affinity.integrations.langgraph import AffinitySaver


async def think(state: MessagesState) -> dict[str, list[AIMessage]]:
    return {"messages": [AIMessage("yes")]}


builder = StateGraph(MessagesState)
builder.add_node("think", think)
builder.add_edge(START, "think")
builder.add_edge("think", END)
graph = builder.compile(checkpointer=AffinitySaver("sqlite:///langgraph.db"))
