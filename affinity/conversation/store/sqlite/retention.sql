-- old_journals: the next journals that were created so long ago, each with whether it is at rest, and its entries; see
-- `WorkerProvider.sweep`
SELECT j.journal_id, j.session_id, j.created_at,
    j.updated_at < :cutoff
    AND (i.status IS NULL OR i.updated_at < :cutoff AND i.status IN ('completed', 'cancelled', 'pending', 'running'))
    AND NOT EXISTS (SELECT 1 FROM session_states AS r WHERE r.session_id = j.session_id AND r.updated_at >= :cutoff)
    AND NOT EXISTS (SELECT 1 FROM journal_requests AS q WHERE q.journal_id = j.journal_id)
    AND NOT EXISTS (SELECT 1 FROM journal_revisits AS v WHERE v.journal_id = j.journal_id)
    AND NOT EXISTS (SELECT 1 FROM journal_delegations AS d WHERE d.journal_id = j.journal_id)
    AND NOT EXISTS (SELECT 1 FROM journal_delegations AS d WHERE d.child = j.session_id)
    AND NOT EXISTS (
        SELECT 1 FROM journals AS c
        WHERE c.parent = j.session_id AND c.parent_journal = j.journal_id AND c.session_id IS NOT NULL)
    AND (j.closed OR NOT EXISTS (
        WITH RECURSIVE part (journal_id, base_id, base_seq, upto) AS (
            SELECT j.journal_id, j.base_id, j.base_seq, j.last_seq
            UNION ALL
            SELECT b.journal_id, b.base_id, b.base_seq, min(u.upto, u.base_seq)
            FROM part AS u CROSS JOIN journals AS b ON b.journal_id = u.base_id
            WHERE u.base_seq > j.processed
        )
        SELECT 1 FROM part AS u CROSS JOIN journal_entries AS e INDEXED BY journal_entries_inputs
        ON e.journal_id = u.journal_id AND e.is_input AND e.seq > j.processed AND e.seq <= u.upto))
    AND NOT EXISTS (SELECT 1 FROM worker_queue AS q WHERE q.instance_id = j.session_id)
    AND NOT EXISTS (SELECT 1 FROM worker_queue AS q WHERE q.session_id = j.session_id)
    AND NOT EXISTS (SELECT 1 FROM orchestrator_queue AS q WHERE q.instance_id = j.session_id)
    AND NOT EXISTS (
        SELECT 1 FROM instances AS c
        WHERE c.parent_id = j.session_id AND c.status NOT IN ('completed', 'failed', 'cancelled'))
    AND NOT EXISTS (
        SELECT 1 FROM sessions AS s CROSS JOIN workers AS w ON w.worker_id = s.worker_id AND w.incarnation = s.incarnation
        WHERE s.session_id = j.session_id AND s.locked_until > :now AND w.locked_until > :now)
    AND NOT EXISTS (SELECT 1 FROM session_holds AS h WHERE h.session_id = j.session_id AND h.until > :now),
    j.last_seq - j.first_seq + 1
FROM journals AS j LEFT JOIN instances AS i ON i.instance_id = j.session_id
WHERE j.session_id IS NOT NULL AND j.created_at < :cutoff
  AND (j.created_at, j.session_id) > (:after_time, :after_id)
ORDER BY j.created_at, j.session_id LIMIT :window;
