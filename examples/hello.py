"""A first orchestration: three greetings on one session, worker and client in one process on an SQLite file.

Run it with ``python examples/hello.py``.
"""

import tempfile

import anyio

import affinity

app = affinity.App("greetings")


@app.activity
async def greet(ctx: affinity.ActivityContext, name: str) -> str:
    return f"hello {name}, from {ctx.worker_id} (epoch {ctx.session_epoch})"


@app.orchestration
async def welcome(ctx: affinity.OrchestrationContext, names: list[str]) -> list[str]:
    session = await ctx.new_guid()
    return [await ctx.schedule_activity(greet, name).on_session(session) for name in names]


async def main(url: str = "sqlite:///affinity.db") -> None:
    async with affinity.Worker(app, url), affinity.Client(url) as client:
        run = await client.start(welcome, ["Ada", "Grace", "Barbara"])
        print(await client.wait(run.instance_id))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(main, f"sqlite:///{folder}/affinity.db")
