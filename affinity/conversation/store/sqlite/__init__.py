"""Conversations on SQLite: their journals.

Files with the same name do the same in `affinity.conversation.store.postgres`.
The SQL of each is in the ``.sql`` file beside it:

    journals            appends, pending work of wakes, reads
    commits             the parts of commits and acks
    lineage             journals that are made from others, and their ancestors
    streams             provisional parts
    admin               listing, descriptions, deletion, pruning
    requests            requests that wait for an answer, of all journals
    retention           the removal of entries and journals by sweeps

Files that only this engine has:

    rows                heads of journals, and the numbers of their entries
    verbs               verbs of several calls
"""

from __future__ import annotations

from typing import Final

from affinity.conversation.store.sqlite import admin, journals, lineage, requests, retention, verbs
from affinity.conversation.store.sqlite.commits import COMMIT
from affinity.provider.sqlite.parts import SqlitePart
from affinity.provider.sqlite.verbs import acts, reads

PART: Final = SqlitePart(
    verbs={
        "append_journal": verbs.append_journal,
        "get_pending": reads(journals.get_pending),
        "read_journal": verbs.read_journal,
        "get_wakes": reads(journals.get_wakes),
        "write_stream": verbs.write_stream,
        "retract_stream": verbs.retract_stream,
        "create_journals": acts("create_journals", "journal", lineage.create),
        "get_lineage": reads(lineage.get),
        "list_journals": verbs.list_journals,
        "list_requests": reads(requests.list_requests),
        "describe_journal": acts("describe_journal", "journal", admin.describe_journal),
        "delete_journal": acts("delete_journal", "journal", admin.delete_journals),
        "prune_journals": verbs.prune_journals,
    },
    rounds=retention.rounds,
    needs_record="EXISTS (SELECT 1 FROM journals AS j WHERE j.session_id = r.session_id)",
    records_removed=admin.delete_journals,
    awaits="""EXISTS (SELECT 1 FROM journals AS j
        WHERE j.journal_id = w.target_id AND j.session_id = w.awaited AND j.processed < w.seq)""",
    commit=COMMIT,
)
