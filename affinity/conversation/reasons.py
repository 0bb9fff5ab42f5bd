"""The reasons why conversations wait: their part of `affinity.explain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from affinity.conversation.journal import JournalFilter, JournalPage, JournalQuery
from affinity.conversation.kinds import NOUN
from affinity.conversation.store.contract import journals_of, keeps_journals
from affinity.errors import Explanation
from affinity.explain import Explainer, add_reasons, counted, time_text
from affinity.explain.names import described, has_code
from affinity.explain.outstanding import Outstanding
from affinity.provider.contract import InstanceInfo

_CHILDREN: Final = 20
"""Children of one conversation that are looked at."""


async def conversation_reason(explainer: Explainer, info: InstanceInfo, outstanding: Outstanding) -> Explanation | None:
    """Return the reason why the conversation waits; None: the instance belongs to no conversation, or its conversation
    has ended.
    """
    me = info.instance_id
    if not keeps_journals(explainer.provider):
        return None
    (page,) = await journals_of(explainer.provider).read_journal([JournalQuery(session_id=me, pending=True, limit=1)])
    if page is None or page.closed:
        return None
    if not any(has_code(worker, NOUN, page.kind) for worker in await explainer.alive()):
        what = described(NOUN, page.kind)
        text = f"waits for a worker with {what}: no live worker has them; include them in the app of one"
        return explainer.reason("name_not_registered", text, {"name": page.kind})
    if (wake := await explainer.activity("its wake")) is not None:
        return wake
    if (found := await _between_wakes(explainer, info, outstanding, page)) is not None:
        return found
    return await _idle(explainer, me)


async def _between_wakes(
    explainer: Explainer, info: InstanceInfo, outstanding: Outstanding, page: JournalPage
) -> Explanation | None:
    """Return the reason after a wake that has failed, or with inputs that no wake has read."""
    listed = await journals_of(explainer.provider).list_journals(JournalFilter(session_id=info.instance_id), 1)
    match [row.status for row in listed]:
        case ["rescheduling"]:
            due = await explainer.next_timer(info, outstanding.timers)
            at = "soon" if due is None else f"at {time_text(due)}"
            return explainer.reason(
                "wake_retrying", f"has a wake that failed, and that runs again {at}", {"due_at": due}
            )
        case ["failed"]:
            text = "has a wake that failed for good: the next input, or `affinity conversation resume {}`, tries again"
            return explainer.reason("wake_failed", text.format(info.instance_id))
    return explainer.reason("turn", "waits for a worker to begin its wake") if page.entries else None


async def _idle(explainer: Explainer, me: str) -> Explanation:
    """Return the reason when all inputs are processed."""
    (work,) = await journals_of(explainer.provider).get_pending([me], limit=0)
    if work is not None and (first := next(iter(work.open_requests), None)) is not None:
        text = f"waits for the answer to the request {first.request_id!r} ({first.kind})"
        return explainer.reason("request", text, {"request_id": first.request_id, "due_at": first.expires_at})
    if work is not None and work.delegations:
        return await _working(explainer, list({delegation.child: None for delegation in work.delegations})[:_CHILDREN])
    if work is not None and work.revisits:
        due = work.revisits[0].due_at
        return explainer.reason("revisit", f"waits for a revisit, due at {time_text(due)}", {"due_at": due})
    return explainer.reason("input", "waits for its next input")


async def _working(explainer: Explainer, children: Sequence[str]) -> Explanation:
    """Return the reason of the first child or run whose reason is known and is not a wait for a client."""
    what, status = "child", ""
    for child in children:
        listed = await journals_of(explainer.provider).list_journals(JournalFilter(session_id=child), 1)
        what, status = ("child", f" ({listed[0].status})") if listed else ("run", "")
        more = [counted(len(children) - 1, "more child", "more children")] if len(children) > 1 else []
        found = await explainer.explain_child(child, what, status, others=more)
        if found is not None and found.code != "input":
            return found
    return explainer.reason("child", f"waits for its {what} {children[-1]!r}{status}")


add_reasons(conversation_reason)
