-- workers: other workers, alive for as long as the benchmark takes
INSERT INTO workers (worker_id, incarnation, locked_until, started_at, labels, capacity, app, code_version, code_since,
    registered)
SELECT 'holder-' || n, 'holder-' || n, clock() + interval '1 day', clock(), '{}', 100, 'flow', '1', clock(), '{}'
FROM generate_series(1, %(workers)s - 1) AS n

-- instances: they wait for an event, and are spread over all workers
INSERT INTO instances (instance_id, generation, name, status, owner_worker, owner_incarnation, event_count, created_at,
    updated_at)
SELECT 'waiting-' || n, '1', 'flow', 'running', w.worker_id, w.incarnation, 2,
    clock() - n * interval '1 ms' - interval '1 h', clock() - interval '1 h'
FROM generate_series(1, %(instances)s) AS n
JOIN (SELECT row_number() OVER (ORDER BY worker_id) - 1 AS place, * FROM workers) w ON w.place = n %% %(workers)s

-- labels: of these instances; a tenth has either of two labels, a hundredth both, and all have one of two tenants
UPDATE instances SET labels = jsonb_strip_nulls(jsonb_build_object(
    'tenant', CASE WHEN n.n %% 2 = 0 THEN 'acme' ELSE 'globex' END,
    'region', CASE WHEN n.n %% 10 = 0 THEN 'eu' END,
    'tier', CASE WHEN (n.n / 10) %% 10 = 0 THEN 'gold' END))
FROM (SELECT instance_id, split_part(instance_id, '-', 2)::bigint AS n FROM instances) n
WHERE n.instance_id = instances.instance_id

-- histories: of these instances
INSERT INTO history (instance_id, execution_id, event_id, event, recorded_at)
SELECT 'waiting-' || n, 1, e.id, e.event, clock() - interval '1 h'
FROM generate_series(1, %(instances)s) AS n
CROSS JOIN (VALUES (1, '{"type":"orchestration_started","name":"flow","input":"null"}'),
                   (2, '{"type":"wait_scheduled","name":"go"}')) AS e (id, event)

-- ended: as many as a tenth of those that wait; none is due yet
WITH made AS (
    INSERT INTO instances (instance_id, generation, name, status, owner_worker, event_count, output, created_at, updated_at)
    SELECT 'ended-' || n, '1', 'flow', 'completed', 'holder-1', 2, 'true', clock() - n * interval '10 ms' - interval '1 h',
        clock() - interval '1 h'
    FROM generate_series(1, %(instances)s / 10) AS n
    RETURNING instance_id
)
INSERT INTO ended_executions (instance_id, execution_id, is_last, ended_at)
SELECT instance_id, 1, true, clock() - interval '1 h' FROM made

-- sessions: held; some by the worker that is measured, and the others spread over the others
INSERT INTO sessions (session_id, worker_id, incarnation, epoch, locked_until, touched_at)
SELECT 'session-' || n, w.id, w.id, nextval('epochs'), clock() + interval '1 day', clock()
FROM generate_series(1, %(sessions)s) AS n
CROSS JOIN LATERAL (
    SELECT CASE WHEN n <= %(own)s THEN 'measured' ELSE 'holder-' || n %% (%(workers)s - 1) + 1 END AS id
) w

-- states: the records of these sessions
INSERT INTO session_states (session_id, state, encoding, schema_version, kind, labels, participants, version, created_at,
    updated_at)
SELECT 'session-' || n, '{}', 'json', 1, 'chat', '{}', '[]', 1, t.at, t.at
FROM generate_series(1, %(sessions)s) AS n CROSS JOIN LATERAL (SELECT clock() - n * interval '1 s' AS at) t

-- due: instances that ended long ago
WITH made AS (
    INSERT INTO instances (instance_id, generation, name, status, event_count, output, created_at, updated_at)
    SELECT %(prefix)s || n, '1', 'flow', 'completed', 2, 'true', clock() - interval '2 days', clock() - interval '2 days'
    FROM generate_series(1, %(batch)s) AS n
    RETURNING instance_id
), recorded AS (
    INSERT INTO history (instance_id, execution_id, event_id, event)
    SELECT instance_id, 1, e, '{}' FROM made CROSS JOIN generate_series(1, 2) AS e
)
INSERT INTO ended_executions (instance_id, execution_id, is_last, ended_at)
SELECT instance_id, 1, true, clock() - interval '2 days' FROM made

-- conversations: with two entries each; a tenth of them wait for an answer
WITH made AS (
    INSERT INTO journals (journal_id, session_id, kind, first_seq, last_seq, processed, size, oldest_at, created_at, updated_at)
    SELECT 1000000 + n, 'waiting-' || n, 'chat', 1, 2, 1, 100, t.at, t.at, t.at
    FROM generate_series(1, %(conversations)s) AS n CROSS JOIN LATERAL (SELECT clock() - n * interval '1 s' AS at) t
    RETURNING journal_id, created_at
), written AS (
    INSERT INTO journal_entries (journal_id, seq, recorded_at, is_input, kind, event_id, payload)
    SELECT journal_id, e.seq, created_at, e.seq = 1, e.kind, 'e-' || e.seq, e.payload FROM made
    CROSS JOIN (VALUES (1, 'user.message', '{"content":"hello","kind":"user.message"}'),
                       (2, 'agent.message', '{"content":"good day","kind":"agent.message"}')) AS e (seq, kind, payload)
)
INSERT INTO journal_requests (journal_id, request_id, kind, seq, place, created_at, payload)
SELECT journal_id, 'r', 'agent.tool_confirmation', 2, 1, created_at,
    '{"tool":"pay","arguments":{},"request_id":"r","kind":"agent.tool_confirmation"}'
FROM made WHERE journal_id %% 10 = 0
