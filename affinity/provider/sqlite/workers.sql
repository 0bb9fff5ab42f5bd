-- get: who has the name, until when
SELECT incarnation, locked_until, draining FROM workers WHERE worker_id = :worker_id;

-- put: take the name and a lease; a new incarnation is a new start
INSERT INTO workers (worker_id, incarnation, locked_until, started_at, labels)
VALUES (:worker_id, :incarnation, :locked_until, :now, :labels)
ON CONFLICT (worker_id) DO UPDATE SET
    started_at = CASE incarnation WHEN excluded.incarnation THEN started_at ELSE excluded.started_at END,
    incarnation = excluded.incarnation,
    locked_until = excluded.locked_until,
    draining = 0,
    labels = excluded.labels;

-- extend: move the end of a lease; also to now, which ends it
UPDATE workers SET locked_until = :locked_until WHERE worker_id = :worker_id AND incarnation = :incarnation;

-- set_draining: claim nothing any more
UPDATE workers SET draining = 1 WHERE worker_id = :worker_id AND incarnation = :incarnation;

-- list: all workers by id, with the number of sessions that each holds
SELECT worker_id, incarnation, locked_until > :now, draining, locked_until - :now, started_at, labels,
       CASE WHEN locked_until > :now THEN (
           SELECT count(*) FROM sessions AS s
           WHERE s.worker_id = workers.worker_id AND s.locked_until > :now AND s.incarnation = workers.incarnation
       ) ELSE 0 END
FROM workers
ORDER BY worker_id;
