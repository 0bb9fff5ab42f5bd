-- pending: as the statement of `get_pending`, if the journal's only pending work is one input, and that is its last entry
LEFT JOIN LATERAL (
    SELECT j.journal_id, j.kind, j.processed, j.closed, j.parent, e.seq, e.kind AS entry_kind, e.payload AS entry, e.event_id,
        e.wake_id, e.is_input, e.recorded_at, e.origin_id IS NOT NULL AS is_copied
    FROM journals j
    CROSS JOIN LATERAL (
        SELECT i.* FROM journal_entries i
        WHERE i.journal_id = j.journal_id AND i.is_input AND i.seq > j.processed ORDER BY i.seq LIMIT 1
    ) e
    WHERE j.session_id = t.instance_id AND t.name = ANY (%(wakes)s) AND j.home IS NULL
      AND j.processed >= coalesce(j.base_seq, 0) AND e.seq = j.last_seq AND octet_length(e.payload) <= %(most_input)s
      AND NOT EXISTS (SELECT FROM journal_requests r WHERE r.journal_id = j.journal_id)
      AND NOT EXISTS (SELECT FROM journal_revisits r WHERE r.journal_id = j.journal_id)
      AND NOT EXISTS (SELECT FROM journal_steps s WHERE s.journal_id = j.journal_id)
      AND NOT EXISTS (SELECT FROM journal_delegations d WHERE d.journal_id = j.journal_id)
    OFFSET 0
) pending ON true
