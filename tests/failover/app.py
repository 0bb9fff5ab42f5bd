"""The app of the tests of failover: conversations, and sessions that are lists of words."""

from __future__ import annotations

import affinity
from affinity import Sessions
from tests.conversation.crash_app import crash
from tests.support.word_list_app import make_app

app = affinity.App("failover")
app.include(crash)
app.include(make_app(Sessions(list[str], kind="notes", initial=lambda _: [])))
