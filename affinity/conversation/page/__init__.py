"""The pages of conversations in the console.

==========  ==============================================================
reads       the content of each page
actions     the actions of their forms
live        the running text of a wake, sent to browsers as it comes
*.html      the templates
==========  ==============================================================
"""

from typing import Final

from affinity.console.pages.base import Page
from affinity.conversation.page import reads
from affinity.conversation.page.actions import VERBS as VERBS
from affinity.conversation.page.live import SaidNow

_TEMPLATES: Final = "conversation/page"

PAGES: Final = (
    Page("/conversations", "Conversations", f"{_TEMPLATES}/conversations.html", reads.conversations, is_in_menu=True),
    Page("/conversation", "Conversation", f"{_TEMPLATES}/conversation.html", reads.conversation, live=SaidNow),
    Page("/wake", "Wake", f"{_TEMPLATES}/wake.html", reads.wake),
    Page(
        "/approvals",
        "Approvals",
        f"{_TEMPLATES}/approvals.html",
        reads.approvals,
        is_in_menu=True,
        waiting=reads.open_requests,
    ),
    Page("/approval", "Approval", f"{_TEMPLATES}/approval.html", reads.approval),
)
