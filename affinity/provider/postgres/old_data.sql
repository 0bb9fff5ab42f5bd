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

-- remove_failures: old ones without a stack, up to a number
WITH removed AS (
    DELETE FROM failures f WHERE f.ctid = ANY (ARRAY (
        SELECT o.ctid FROM failures o
        WHERE o.stack IS NULL AND o.failed_at < (SELECT clock() - %(older_than)s * interval '1 s')
        ORDER BY o.failed_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
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
    NOT (false
    -- conditions of guests
    )
    AND (SELECT true FROM session_holds h WHERE h.session_id = r.session_id AND h.until > clock() LIMIT 1) IS NULL
    AND (SELECT true FROM instances i
         WHERE i.session_id = r.session_id AND i.status NOT IN ('completed', 'failed', 'cancelled') LIMIT 1) IS NULL
FROM session_states r
WHERE (r.updated_second, r.session_id) > (coalesce(%(after_time)s::timestamp, '-infinity'), coalesce(%(after_id)s, ''))
  AND r.updated_second < (SELECT (clock() - %(older_than)s * interval '1 s') AT TIME ZONE 'UTC' - interval '1 s')
ORDER BY r.updated_second, r.session_id LIMIT %(window)s
