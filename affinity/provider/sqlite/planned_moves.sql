-- has_work_or_hold: whether a session has an item in the queue, or a hold that lasts
SELECT EXISTS (SELECT 1 FROM worker_queue WHERE session_id = :session_id)
    OR EXISTS (SELECT 1 FROM session_holds WHERE session_id = :session_id AND until > :now);

-- plan: let a session move to a worker
UPDATE sessions SET next_worker = :target, next_until = :now + :within, next_reason = :reason
WHERE session_id = :session_id;

-- idle: sessions that are to move to the caller, if their holders have no work of them in hand
SELECT json_group_array(s.session_id)
FROM json_each(:session_ids) AS j
CROSS JOIN sessions AS s ON s.session_id = j.value
WHERE s.next_worker = :worker_id AND (s.next_until <= :now) IS NOT TRUE
  AND NOT EXISTS (
      SELECT 1 FROM worker_queue AS q
      WHERE q.session_id = s.session_id AND q.lock_incarnation = s.incarnation AND q.locked_until > :now);

-- keep_holds: a hold lasts at the new holder
UPDATE sessions SET locked_until = max(locked_until, coalesce(
    (SELECT max(until) FROM session_holds AS h WHERE h.session_id = sessions.session_id), 0))
WHERE session_id IN (SELECT value FROM json_each(:session_ids));
