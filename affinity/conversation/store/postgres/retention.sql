-- old_journals: the next journals that were created so long ago, each with whether it is at rest, and its entries
WITH looked AS MATERIALIZED (
    SELECT j.journal_id, j.session_id, j.created_at, j.last_seq - j.first_seq + 1 AS entries FROM journals j
    WHERE j.session_id IS NOT NULL AND j.created_at < (SELECT clock()) - %(older_than)s * interval '1 s'
      AND (j.created_at, j.session_id) > (coalesce(%(after_time)s::timestamptz, '-infinity'), coalesce(%(after_id)s, ''))
    ORDER BY j.created_at, j.session_id LIMIT %(window)s
), resting AS MATERIALIZED (
    SELECT f.journal_id FROM find_resting(
        ARRAY (SELECT journal_id FROM looked), clock() - %(older_than)s * interval '1 s') AS f (journal_id)
)
SELECT l.journal_id, l.session_id, l.created_at::text, r.journal_id IS NOT NULL, l.entries
FROM looked l LEFT JOIN resting r USING (journal_id) ORDER BY l.created_at, l.session_id

-- remove_journals: as far as they are still at rest; their number
SELECT remove_resting(%(journals)s, clock() - %(older_than)s * interval '1 s')
