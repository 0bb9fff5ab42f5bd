"""A chat service in Django: ``django-admin runserver --settings django_site --pythonpath .``, beside a worker."""

import os
from typing import Any

from django.http import HttpRequest, JsonResponse
from django.urls import path
from pydantic import BaseModel

import affinity
from affinity.errors import ClientError, UnknownInstance, WaitTimeout

SECRET_KEY = "for this example"  # noqa: S105
DEBUG = True
ROOT_URLCONF = __name__

app = affinity.App("chat")

Say = affinity.Event("message", str, reply=str)


class Title(BaseModel):
    """The state of the session of a chat."""

    text: str = ""


titles = affinity.Sessions(Title, kind="title")
app.include(titles)


@app.activity
async def answer(ctx: affinity.ActivityContext, text: str) -> str:
    """Stands for a language model."""
    return f"you said {text!r}"


@app.orchestration
async def conversation(ctx: affinity.OrchestrationContext) -> int:
    """Answer messages until one says bye."""
    turns, text = 0, ""
    while text != "bye":
        said = await ctx.schedule_wait(Say)
        text = said.data
        said.reply(await ctx.schedule_activity(answer, text))
        turns += 1
    return turns


client = affinity.sync.Client(os.environ.get("AFFINITY_URL", "sqlite:///affinity.db"))


def start(request: HttpRequest, chat_id: str) -> JsonResponse:
    """A second start is no error."""
    run = client.start(conversation, instance_id=chat_id)
    return JsonResponse({"outcome": run.outcome}, status=202)


def say(request: HttpRequest, chat_id: str) -> JsonResponse:
    """The reply, or that it takes longer: then the browser asks again with the same key."""
    key = request.META.get("HTTP_IDEMPOTENCY_KEY")
    try:
        reply = client.ask(chat_id, Say(str(request.POST["text"])), idempotency_key=key, timeout=20)
    except WaitTimeout:
        return JsonResponse({"status": "running"}, status=202)
    return JsonResponse({"reply": reply})


def rename(request: HttpRequest, chat_id: str) -> JsonResponse:
    """Change the state of the session, also while others do."""

    def change(title: Title) -> str:
        former, title.text = title.text, str(request.POST["title"])
        return former

    return JsonResponse({"former": titles.update_sync(chat_id, change, store=client.session_store)})


class Refusals:
    """A request that does not fit the instance is an answer, not a failure."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        """Nothing but the next one."""
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> JsonResponse | None:
        """Django calls it with what a view raised."""
        if not isinstance(error, ClientError):
            return None
        return JsonResponse({"error": str(error)}, status=404 if isinstance(error, UnknownInstance) else 409)


MIDDLEWARE = [f"{__name__}.Refusals"]

urlpatterns = [
    path("chats/<chat_id>", start),
    path("chats/<chat_id>/messages", say),
    path("chats/<chat_id>/title", rename),
]
