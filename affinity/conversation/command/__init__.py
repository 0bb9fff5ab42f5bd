"""The group ``affinity conversation``.

==========  ==============================================================
group       the group
opening     the handle of a conversation, of the kind that its journal has
show        what a conversation is and what happened in it
send        sends events to it
lineage     where it comes from
==========  ==============================================================
"""

from affinity.conversation.command.group import conversation as conversation
