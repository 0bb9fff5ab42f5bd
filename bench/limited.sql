-- turn: what a turn of each of these instances writes whose work has a limit, and nothing that it checks: beside the rows of
-- `fused.sql` a place for each item, and the counts of its key
WITH acked AS (
    DELETE FROM worker_queue
    WHERE (instance_id, execution_id, activity_id) IN (
        SELECT one, 1, %(events)s FROM unnest(%(instances)s::text[]) AS i (one))
      AND lock_token = %(token)s
    RETURNING 1
), freed AS (
    DELETE FROM limited_work
    WHERE (instance_id, execution_id, activity_id) IN (
        SELECT one, 1, %(events)s FROM unnest(%(instances)s::text[]) AS i (one))
), placed AS (
    INSERT INTO limited_work (instance_id, execution_id, activity_id, line_id, since, admitted_at)
    SELECT one, 1, %(events)s + 2, 1, clock(), clock() FROM unnest(%(instances)s::text[]) AS i (one)
), counted AS (
    UPDATE limit_keys
    SET admitted = admitted + cardinality(%(instances)s::text[]), last_admitted = clock(),
        used_at = ARRAY[extract(epoch FROM clock())], used_units = ARRAY[cardinality(%(instances)s::text[])]
    WHERE key_id = 1
), recorded AS (
    INSERT INTO history (instance_id, execution_id, event_id, event)
    SELECT one, 1, %(events)s + e.n, e.event
    FROM unnest(%(instances)s::text[]) AS i (one), (VALUES (1, %(completed)s), (2, %(scheduled)s)) AS e (n, event)
), queued AS (
    INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload,
        lock_worker, lock_incarnation, lock_token, locked_until, attempts, enqueued_at, gate, gate_session)
    SELECT one, 1, %(events)s + 2, 'step', one, 'w:bench', clock(), %(payload)s,
        'bench', 'bench', %(token)s, clock() + interval '30 s', 1, clock(), %(gate)s, one
    FROM unnest(%(instances)s::text[]) AS i (one)
), advanced AS (
    UPDATE instances SET event_count = %(events)s + 2, updated_at = clock()
    WHERE instance_id = ANY (%(instances)s::text[])
), touched AS (
    UPDATE sessions SET locked_until = clock() + interval '300 s', touched_at = clock()
    WHERE session_id = ANY (%(instances)s::text[])
)
SELECT count(*) FROM acked

-- begin: instances with one item each, on a session of their own, and its place at a limit
WITH started AS (
    INSERT INTO instances (instance_id, generation, name, status, owner_worker, owner_incarnation, created_at, updated_at)
    SELECT one, '1', 'walk', 'running', 'bench', 'bench', clock(), clock() FROM unnest(%(instances)s::text[]) AS i (one)
), held AS (
    INSERT INTO sessions (session_id, worker_id, incarnation, epoch, locked_until, touched_at)
    SELECT one, 'bench', 'bench', nextval('epochs'), clock() + interval '300 s', clock()
    FROM unnest(%(instances)s::text[]) AS i (one)
), limited AS (
    INSERT INTO limit_keys (key_id, limit_name, key, in_use) VALUES (1, 'open', '', cardinality(%(instances)s::text[]))
), line AS (
    INSERT INTO limit_lines (line_id, gate_hash, priority, keys, units, domain, share, weight, used_at)
    VALUES (1, sha256(convert_to(%(gate)s, 'UTF8')), 0, '{1}', '{1}', 1, 1, 1, clock())
), placed AS (
    INSERT INTO limited_work (instance_id, execution_id, activity_id, line_id, since, admitted_at)
    SELECT one, 1, 0, 1, clock(), clock() FROM unnest(%(instances)s::text[]) AS i (one)
)
INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload,
    lock_worker, lock_incarnation, lock_token, locked_until, attempts, enqueued_at, gate, gate_session)
SELECT one, 1, 0, 'step', one, 'w:bench', clock(), %(payload)s,
    'bench', 'bench', %(token)s, clock() + interval '30 s', 1, clock(), %(gate)s, one
FROM unnest(%(instances)s::text[]) AS i (one)

-- written: turns in the history, and places
SELECT (SELECT count(*) / 2 FROM history), (SELECT count(*) FROM limited_work)
