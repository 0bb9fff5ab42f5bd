-- remove_moves: the oldest ones, if the very oldest is old enough
WITH old AS MATERIALIZED (
    SELECT m.epoch, m.moved_at FROM session_moves m
    -- A scalar subquery: it is asked once, not for each row.
    WHERE (SELECT (SELECT moved_at FROM session_moves ORDER BY epoch LIMIT 1) < clock() - %(older_than)s * interval '1 s')
    ORDER BY m.epoch LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), removed AS (
    -- By a list: a join could be planned to begin with all rows.
    DELETE FROM session_moves m WHERE m.epoch = ANY (ARRAY (
        SELECT epoch FROM old WHERE moved_at < clock() - %(older_than)s * interval '1 s'))
    RETURNING 1
)
SELECT count(*) FROM removed

-- due_rounds: rounds of which a step is due
SELECT n.name, r.place, coalesce(r.removed, 0), coalesce(r.pause, 0)
FROM unnest(%(names)s) AS n (name) LEFT JOIN rounds r USING (name)
WHERE (r.due_at > clock()) IS NOT TRUE

-- save_round: where its next step begins, and when
INSERT INTO rounds AS r (name, place, removed, pause, due_at)
VALUES (%(name)s, %(place)s, %(removed)s, %(pause)s, clock() + %(wait)s * interval '1 s')
ON CONFLICT (name) DO UPDATE
SET place = excluded.place, removed = excluded.removed, pause = excluded.pause, due_at = excluded.due_at

-- old_records: the next records that were not written for long, each with whether nothing needs it
SELECT r.session_id, r.version, r.generation, r.updated_second::text,
    (SELECT true FROM journals j WHERE j.session_id = r.session_id) IS NULL
    AND (SELECT true FROM session_holds h WHERE h.session_id = r.session_id AND h.until > clock() LIMIT 1) IS NULL
    AND (SELECT true FROM instances i
         WHERE i.session_id = r.session_id AND i.status NOT IN ('completed', 'failed', 'cancelled') LIMIT 1) IS NULL
FROM session_states r
WHERE (r.updated_second, r.session_id) > (coalesce(%(after_time)s::timestamp, '-infinity'), coalesce(%(after_id)s, ''))
  AND r.updated_second < (SELECT (clock() - %(older_than)s * interval '1 s') AT TIME ZONE 'UTC' - interval '1 s')
ORDER BY r.updated_second, r.session_id LIMIT %(window)s

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
