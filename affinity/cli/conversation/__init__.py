"""The group ``affinity conversation``.

==========  ==============================================================
command     the group
opening     the handle of a conversation, of the kind that its journal has
show        what a conversation is and what happened in it
send        sends events to it
lineage     where it comes from
==========  ==============================================================
"""

from affinity.cli.conversation.command import conversation

__all__ = ["conversation"]
