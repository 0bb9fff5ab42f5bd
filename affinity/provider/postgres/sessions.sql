-- list_sessions: one page of sessions by id, or some of them
SELECT s.session_id, s.worker_id, s.incarnation, s.epoch,
    -- Not EXISTS, for which all held sessions might be read into a hash table.
    (SELECT true FROM held_sessions h WHERE h.session_id = s.session_id) IS TRUE,
    extract(epoch FROM s.locked_until - clock())::float8, extract(epoch FROM clock() - s.touched_at)::float8,
    (SELECT count(*) FROM worker_queue q WHERE q.session_id = s.session_id),
    (SELECT m.next_worker FROM held_sessions h JOIN planned_moves m ON m.session_id = h.session_id
     WHERE h.session_id = s.session_id)
FROM sessions s
-- [page
WHERE (%(after)s::text IS NULL OR s.session_id > %(after)s)
-- [of
  AND s.worker_id = %(worker)s
-- of]
ORDER BY s.session_id LIMIT %(limit)s
-- page]
-- [some
WHERE s.session_id = ANY (%(session)s)
-- some]
