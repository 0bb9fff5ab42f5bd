"""What each page reads. A page is a function of the client, the query of the URL, and the values that it shows."""

from affinity.console.pages import audit, conversations, instances, overview, schedules, sessions, workers
from affinity.console.pages.base import Page

PAGES = {
    page.path: page
    for page in (
        Page("/", "Overview", "overview.html", overview.overview),
        Page("/workers", "Workers", "workers.html", workers.workers),
        Page("/drain", "Drain", "drain.html", workers.drain),
        Page("/schedules", "Schedules", "schedules.html", schedules.schedules),
        Page("/sessions", "Sessions", "sessions.html", sessions.sessions),
        Page("/records", "Records", "records.html", sessions.records),
        Page("/session", "Session", "session.html", sessions.session),
        Page("/instances", "Instances", "instances.html", instances.instances),
        Page("/instance", "Instance", "instance.html", instances.instance),
        Page("/reset", "Reset", "reset.html", instances.reset),
        Page("/conversations", "Conversations", "conversations.html", conversations.conversations),
        Page("/conversation", "Conversation", "conversation.html", conversations.conversation),
        Page("/wake", "Wake", "wake.html", conversations.wake),
        Page("/approvals", "Approvals", "approvals.html", conversations.approvals),
        Page("/approval", "Approval", "approval.html", conversations.approval),
        Page("/audit", "Audit", "audit.html", audit.audit),
    )
}
"""By path below the console's prefix."""

__all__ = ["PAGES", "Page"]
