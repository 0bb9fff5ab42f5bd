"""Durable chats by others, for ``ask``: LangGraph with its checkpointer for PostgreSQL, DBOS, and Restate.

``python -m bench.ask_peers NAME URL CHATS ASKS`` asks each of so many chats so often, one after the other in each chat,
and prints what it took as JSON. The asks are made in the process that answers them: there is no way to another process,
as ours have.
"""

from __future__ import annotations

import asyncio
import json
import operator
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple, TypedDict

from bench.restate_peer import restate_chats
from bench.work import STATE, Ask, WrongResults, answer_to

CONNECTIONS: Final = 8
"""Of the pool of each."""

WARM_UP: Final = 5


class Asked(NamedTuple):
    """What some asks took."""

    times: list[float]  # seconds of each
    seconds: float  # of all
    cpu: float  # seconds of a processor

    @classmethod
    def parse(cls, text: str) -> Asked:
        """What the process has printed."""
        return cls(*json.loads(text))


async def ask_chat(ask: Ask, chat: str, asks: int, times: list[float]) -> None:
    """Ask a chat so often.

    Raises:
        WrongResults: an answer is wrong: one was lost or doubled.
    """
    for number in range(asks):
        began = time.monotonic()
        answer = await ask(chat, f"question {number}")
        times.append(time.monotonic() - began)
        if answer != answer_to(f"question {number}", number):
            raise WrongResults(f"{chat} answered question {number} with {answer!r}")


class Chat(TypedDict):
    """The state of the graph."""

    transcript: Annotated[list[tuple[str, str]], operator.add]
    state: str


@asynccontextmanager
async def _langgraph(url: str) -> AsyncIterator[Ask]:
    from langgraph.graph import END, START, StateGraph

    async def answer(chat: Chat) -> dict[str, Any]:
        question, before = chat["transcript"][-1][1], len(chat["transcript"]) // 2
        return {"transcript": [("agent", answer_to(question, before))], "state": f"{before}{STATE}"}

    builder: Any = StateGraph(Chat)  # its overloads know no partial input
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": import_module("psycopg.rows").dict_row}
    pool = import_module("psycopg_pool").AsyncConnectionPool
    async with pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS, kwargs=options) as connections:
        saver = import_module("langgraph.checkpoint.postgres.aio").AsyncPostgresSaver(connections)
        await saver.setup()
        graph = builder.compile(checkpointer=saver)

        async def ask(chat: str, question: str) -> str:
            thread: Any = {"configurable": {"thread_id": chat}}
            found = await graph.ainvoke({"transcript": [("user", question)]}, thread, durability="sync")
            return str(found["transcript"][-1][1])

        yield ask


@asynccontextmanager
async def _dbos(url: str) -> AsyncIterator[Ask]:
    dbos = import_module("dbos").DBOS
    configuration = {"name": "ask", "system_database_url": url, "application_version": "1", "log_level": "ERROR"}
    dbos(config=configuration)
    pool = import_module("psycopg_pool").AsyncConnectionPool
    async with pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS) as connections:
        async with connections.connection() as connection:
            await connection.execute("CREATE TABLE chats (id text PRIMARY KEY, answers integer, state text)")
            await connection.execute("CREATE TABLE lines (chat text, n integer, line text, PRIMARY KEY (chat, n))")

        async def answer(chat: str, question: str) -> str:
            async with connections.connection() as connection:  # one transaction
                cursor = await connection.execute("SELECT answers FROM chats WHERE id = %s FOR UPDATE", [chat])
                row = await cursor.fetchone()
                before = 0 if row is None else int(row[0])
                text = answer_to(question, before)
                await connection.execute(
                    "INSERT INTO lines VALUES (%(chat)s, %(n)s, %(question)s), (%(chat)s, %(n)s + 1, %(answer)s)",
                    {"chat": chat, "n": 2 * before, "question": question, "answer": text},
                )
                await connection.execute(
                    "INSERT INTO chats VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE SET answers = excluded.answers,"
                    " state = excluded.state",
                    [chat, before + 1, f"{before}{STATE}"],
                )
                return text

        durable_answer = dbos.step(name="answer")(answer)

        async def ask(chat: str, question: str) -> str:
            return str(await durable_answer(chat, question))

        durable_ask: Ask = dbos.workflow(name="ask")(ask)
        dbos.launch()
        try:
            yield durable_ask
        finally:
            dbos.destroy()


_OPENERS: Final = {"langgraph": _langgraph, "dbos": _dbos, "restate": restate_chats}


async def _run(name: str, url: str, chats: int, asks: int) -> Asked:
    async with _OPENERS[name](url) as ask:
        await asyncio.gather(*(ask_chat(ask, f"warm-up-{number}", WARM_UP, []) for number in range(WARM_UP)))
        times: list[float] = []
        began, before = time.monotonic(), time.process_time()
        await asyncio.gather(*(ask_chat(ask, f"chat-{number}", asks, times) for number in range(chats)))
        return Asked(times, time.monotonic() - began, time.process_time() - before)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_run(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))))
