-- find: items by their live tokens, each with its place in the list of locks
SELECT json_group_array(json_array(j.key, q.id, q.session_id, q.lock_incarnation))
FROM json_each(:locks) AS j
CROSS JOIN worker_queue AS q
    ON q.instance_id = j.value ->> '$[0][0]' AND q.execution_id = j.value ->> '$[0][1]'
    AND q.activity_id = j.value ->> '$[0][2]'
WHERE q.lock_token = j.value ->> 1 AND q.locked_until > :now;

-- carries: which of some items still carry the tokens of a list of locks, by their place in it
SELECT json_group_array(j.key)
FROM json_each(:locks) AS j
CROSS JOIN worker_queue AS q
    ON q.instance_id = j.value ->> '$[0][0]' AND q.execution_id = j.value ->> '$[0][1]'
    AND q.activity_id = j.value ->> '$[0][2]'
WHERE q.lock_token = j.value ->> 1;

-- routes: in the queue, between two, found one by one in the index
WITH RECURSIVE routes (route) AS (
    SELECT min(route) FROM worker_queue WHERE route > :first AND route < :last
    UNION ALL
    SELECT (SELECT min(route) FROM worker_queue WHERE route > routes.route AND route < :last) FROM routes
    WHERE routes.route IS NOT NULL
)
SELECT route FROM routes WHERE route IS NOT NULL;

-- extend: move the end of locks
UPDATE worker_queue SET locked_until = :locked_until WHERE id IN (SELECT value FROM json_each(:rows));

-- remove: items that are finished
DELETE FROM worker_queue WHERE id IN (SELECT value FROM json_each(:rows));

-- give_back: unlock an item and count what came of it; one that was to be failed waits behind others again
UPDATE worker_queue SET
    lock_worker = NULL, lock_incarnation = NULL, lock_token = NULL, locked_until = NULL,
    route = CASE WHEN route = 'blocked' THEN route WHEN gate IS NULL THEN :route ELSE 'gate' END,
    session_id = iif(limited, NULL, session_id),
    gate_session = iif(limited, coalesce(session_id, gate_session), NULL),
    passed_over = NULL,
    visible_at = CASE WHEN :delay > 0 THEN :now + :delay ELSE min(visible_at, :now) END,
    attempts = attempts - :uncounted,
    failures = failures + :failed,
    failed_at = iif(:failed, :now, failed_at),
    unknown_since = CASE WHEN :unknown THEN coalesce(unknown_since, :now) ELSE unknown_since END,
    needs = CASE WHEN :unknown THEN :needs ELSE needs END,
    last_error = coalesce(:error, last_error),
    waits_since = :now + max(:delay, 0),
    attend_at = iif(attend_at IS NULL OR limited, NULL, :now + max(:delay, 0) + min(
        coalesce(takeover_after, fail_after), coalesce(fail_after, takeover_after)))
WHERE id = :id;

-- begin: count a delivery that its fetch did not count; if its worker ends, the item comes again behind others
UPDATE worker_queue SET attempts = max(attempts, :attempt), visible_at = :visible_at WHERE id = :id;

-- release_unknown_locks: free items locked under tokens that this incarnation does not know; `delivered` keep their attempt
UPDATE worker_queue SET
    lock_worker = NULL, lock_incarnation = NULL, lock_token = NULL, locked_until = NULL,
    visible_at = min(visible_at, :now), attempts = attempts - (lock_token NOT IN (SELECT value FROM json_each(:delivered)))
WHERE lock_incarnation = :incarnation AND lock_token NOT IN (SELECT value FROM json_each(:known));

-- insert: queue items; an item that comes with a token is locked to the committer; a head start makes it visible earlier
INSERT INTO worker_queue (
    instance_id, execution_id, activity_id, name, session_id, route, visible_at,
    lock_worker, lock_incarnation, lock_token, locked_until, attempts, enqueued_at, payload, order_session, order_number,
    tag, takeover_after, fail_after, waits_since, attend_at, gate, limited, gate_session
)
SELECT value ->> '$[0][0]', value ->> '$[0][1]', value ->> '$[0][2]', value ->> 1, value ->> 2, value ->> 3,
       :now + max(value ->> 4, 0.0) - iif(value ->> 13 AND value ->> 3 IN ('gate', 'blocked'), 0.0, coalesce(value ->> 15, 0.0)),
       iif(value ->> 5 IS NULL, NULL, :worker_id), iif(value ->> 5 IS NULL, NULL, :incarnation), value ->> 5,
       iif(value ->> 5 IS NULL, NULL, :locked_until), value ->> 5 IS NOT NULL, :now, value ->> 6,
       value ->> 7, value ->> 8, value ->> 9, value ->> 10, value ->> 11,
       :now + max(value ->> 4, 0.0),
       -- NULL if both are, and while the item waits at its gate
       :now + max(value ->> 4, 0.0) + iif(value ->> 13 AND value ->> 3 IN ('gate', 'blocked'), NULL, min(
           coalesce(value ->> 10, value ->> 11), coalesce(value ->> 11, value ->> 10))),
       value ->> 12, value ->> 13, value ->> 14
FROM json_each(:rows);

-- insert_locked: the same for items that are all locked to the committer, and have no more columns, as nearly all
INSERT INTO worker_queue (
    instance_id, execution_id, activity_id, name, session_id, route, visible_at,
    lock_worker, lock_incarnation, lock_token, locked_until, attempts, enqueued_at, payload
)
SELECT value ->> '$[0][0]', value ->> '$[0][1]', value ->> '$[0][2]', value ->> 1, value ->> 2, value ->> 3, :now,
       :worker_id, :incarnation, value ->> 5, :locked_until, 1, :now, value ->> 6
FROM json_each(:rows);

-- last_in_order: the number of the last ordered item of a session; 0: there is none
SELECT coalesce(max(order_number), 0) FROM worker_queue WHERE order_session = :session_id;
