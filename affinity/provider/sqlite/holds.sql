-- end_some: holds that end, by name
DELETE FROM session_holds WHERE (instance_id, execution_id, hold_id) IN (
    SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(:rows)
)
RETURNING session_id, session_lock;

-- end_all: all holds of instances
DELETE FROM session_holds WHERE instance_id IN (SELECT value FROM json_each(:rows)) RETURNING session_id, session_lock;

-- cut_back: end locks after some seconds, or with the latest hold that is left, whichever is later
UPDATE sessions SET locked_until = min(locked_until, max(bounds.until, coalesce(
    (SELECT max(h.until) FROM session_holds AS h WHERE h.session_id = sessions.session_id), bounds.until
)))
FROM (SELECT value ->> 0 AS session_id, :now + max(value ->> 1) AS until FROM json_each(:rows) GROUP BY 1) AS bounds
WHERE sessions.session_id = bounds.session_id AND sessions.locked_until > bounds.until;

-- begin: remember holds
INSERT INTO session_holds (instance_id, execution_id, hold_id, session_id, until, session_lock)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, :now + (value ->> 4), :session_lock
FROM json_each(:rows) WHERE true
ON CONFLICT (instance_id, execution_id, hold_id) DO UPDATE SET
    session_id = excluded.session_id, until = excluded.until, session_lock = excluded.session_lock;

-- extend: let locks of sessions that a live worker holds last as long as a hold
UPDATE sessions SET locked_until = bounds.until
FROM (SELECT value ->> 0 AS session_id, :now + max(value ->> 1) AS until FROM json_each(:rows) GROUP BY 1) AS bounds
WHERE sessions.session_id = bounds.session_id AND sessions.locked_until > :now AND sessions.locked_until < bounds.until
  AND EXISTS (
      SELECT 1 FROM workers AS w
      WHERE w.worker_id = sessions.worker_id AND w.incarnation = sessions.incarnation AND w.locked_until > :now
  );

-- watch: notify instances from now on when a session moves
INSERT INTO session_watches (session_id, instance_id, payload)
SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(:rows) WHERE true
ON CONFLICT (session_id, instance_id) DO UPDATE SET payload = excluded.payload;

-- unwatch: all watches of instances
DELETE FROM session_watches WHERE instance_id IN (SELECT value FROM json_each(:rows));
