"""The group ``affinity conversation``.

==========  ==============================================================
group       the group
opening     the handle of a conversation, of the kind that its journal has
show        shows a conversation and its entries
send        sends events to it
lineage     forks it, and shows its ancestors
==========  ==============================================================
"""

from affinity.conversation.command.group import conversation as conversation
