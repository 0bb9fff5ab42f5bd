-- has_due: whether an item has waited for as long as it may
SELECT EXISTS (SELECT 1 FROM worker_queue WHERE attend_at <= :now);

-- due: the items whose wait has ended, with what happens to them
SELECT id, session_id, CASE WHEN lock_token IS NOT NULL THEN 'running'
                            WHEN waits_since + fail_after <= :now THEN 'busy' ELSE 'takeover' END
FROM worker_queue WHERE attend_at <= :now ORDER BY attend_at LIMIT :limit;

-- postpone_running: running items begin to wait again when their locks end
UPDATE worker_queue SET waits_since = max(:now, locked_until), attend_at = max(:now, locked_until) + min(
    coalesce(takeover_after, fail_after), coalesce(fail_after, takeover_after))
WHERE id IN (SELECT value FROM json_each(:rows));

-- postpone_waiting: to the next attempt, or their end
UPDATE worker_queue SET attend_at = min(
    coalesce(:now + takeover_after, waits_since + fail_after), coalesce(waits_since + fail_after, :now + takeover_after))
WHERE id IN (SELECT value FROM json_each(:rows));

-- had_tag: whether a worker with a tag was alive since a time
SELECT EXISTS (
    SELECT 1 FROM workers AS w, json_each(w.tags) AS has WHERE has.value IN (:tag, 'any') AND w.locked_until > :since);

-- stranded: items of a route that are not locked and wait since a time
SELECT json_group_array(id) FROM (
    SELECT q.id FROM worker_queue AS q
    WHERE q.route = :route AND q.visible_at <= :since
      AND max(q.enqueued_at, coalesce(q.waits_since, 0.0)) <= :since
      AND (q.lock_token IS NULL OR q.limited IS NOT 1 AND (
           q.locked_until <= :now OR q.lock_incarnation NOT IN (SELECT incarnation FROM workers WHERE locked_until > :now)))
    ORDER BY q.visible_at LIMIT :limit
);

-- lock: lock an item to the caller, which fails it
UPDATE worker_queue SET lock_worker = :worker_id, lock_incarnation = :incarnation, lock_token = :token,
    locked_until = :locked_until, attend_at = iif(attend_at IS NULL, NULL, :locked_until)
WHERE id = :id
RETURNING instance_id, execution_id, activity_id, name, payload, coalesce(session_id, gate_session, order_session), attempts,
    failures, :now - enqueued_at, order_number IS NOT NULL, limited IS 1;

-- has_room_elsewhere: whether another worker than the holder takes work of a session, and has room for it
SELECT EXISTS (
    SELECT 1 FROM sessions AS s JOIN workers AS w ON w.worker_id <> s.worker_id
    WHERE s.session_id = :session_id AND w.locked_until > :now AND NOT w.draining
      AND iif(s.tag IS NULL, NOT w.only_tagged, EXISTS (SELECT 1 FROM json_each(w.tags) WHERE value IN (s.tag, 'any')))
      AND w.capacity > (
          SELECT count(*) FROM sessions AS x
          WHERE x.worker_id = w.worker_id AND x.locked_until > :now AND x.incarnation = w.incarnation));
