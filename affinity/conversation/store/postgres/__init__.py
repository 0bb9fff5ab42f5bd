"""Conversations on PostgreSQL: their journals.

Files with the same name do the same in `affinity.conversation.store.sqlite`.
The SQL of each is in the ``.sql`` file beside it:

    journals            appends, pending work of wakes, reads
    commits             the parts of commits and acks
    lineage             journals that are made from others, and their ancestors
    streams             provisional parts
    admin               listing, descriptions, deletion, pruning
    requests            requests that wait for an answer, of all journals
    retention           the removal of entries and journals by sweeps

Files that only this engine has:

    fetches             the inputs of a wake that are fetched with its work item
"""

from __future__ import annotations

from typing import Final

from affinity.conversation.store.postgres import admin, journals, lineage, requests, retention, streams
from affinity.conversation.store.postgres.commits import COMMIT
from affinity.conversation.store.postgres.fetches import PREFETCH
from affinity.provider.postgres.actions import acts
from affinity.provider.postgres.parts import CHANGE, READ, RUN, PostgresPart, Rights

PART: Final = PostgresPart(
    verbs={
        "append_journal": acts("journal", journals.append_journal),
        "get_pending": journals.get_pending,
        "read_journal": journals.read_journal,
        "get_wakes": journals.get_wakes,
        "write_stream": streams.write_stream,
        "retract_stream": streams.retract_stream,
        "create_journals": acts("journal", lineage.create_journals),
        "get_lineage": lineage.get_lineage,
        "list_journals": admin.list_journals,
        "list_requests": requests.list_requests,
        "describe_journal": acts("journal", admin.describe_journal),
        "delete_journal": acts("journal", admin.delete_journal),
        "prune_journals": acts("", admin.prune_journals),
    },
    commit=COMMIT,
    prefetch=PREFETCH,
    rights=(
        Rights(
            "TABLE",
            "journal_delegations journal_entries journal_parents journal_requests journal_revisits journal_steps"
            " journal_streams journal_wakes journals",
            client=READ,
            worker=CHANGE,
        ),
        # Functions for the writes of clients. Each runs with the owner's rights, and checks its arguments.
        Rights(
            "FUNCTION",
            "client_append_input client_append_journals client_create_journal describe_journal",
            client=RUN,
            worker=RUN,
            reader="",
        ),
        # Functions for the reads of clients.
        Rights(
            "FUNCTION",
            "find_entries find_inherited_reply is_inherited_input journal_segments",
            client=RUN,
            worker=RUN,
        ),
        Rights(
            "FUNCTION",
            "append_input append_journals bounce_journals commit_wake create_journal create_journals creation_parents"
            " creation_refusal creations_fit cut_journals delete_journals find_inherited_event find_resting keep_usage"
            " park_items prune_all_journals prune_journals remove_resting start_journals unpark_items unparked_at"
            " write_journals",
            worker=RUN,
        ),
        # Functions for the owner alone. Triggers run for each role that changes the row.
        Rights(
            "FUNCTION",
            "check_client_description check_client_entry delete_journal_of_record end_delegations is_dead_letter"
            " is_kind_of_wakes",
        ),
    ),
    rounds=retention.rounds,
    needs_record="(SELECT true FROM journals j WHERE j.session_id = r.session_id) IS NOT NULL",
    awaits="""EXISTS (SELECT FROM journals j
        WHERE j.journal_id = w.target_id AND j.session_id = w.awaited AND j.processed < w.seq)""",
)
