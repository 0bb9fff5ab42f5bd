-- append: an input of each of these conversations, and its parked wake to the queue
WITH numbered AS (
    UPDATE journals SET last_seq = last_seq + 1, size = size + octet_length(%(input)s), updated_at = clock()
    WHERE session_id = ANY (%(instances)s::text[])
    RETURNING journal_id, last_seq
), added AS (
    INSERT INTO journal_entries (journal_id, seq, recorded_at, is_input, kind, event_id, payload)
    SELECT journal_id, last_seq, clock(), true, 'user.message', %(event)s, %(input)s FROM numbered
), unparked AS (
    UPDATE parked_items SET parked = false WHERE instance_id = ANY (%(instances)s::text[])
    RETURNING instance_id, activity_id, payload
), queued AS (
    INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload, enqueued_at)
    SELECT instance_id, 1, activity_id, 'talk.wake', instance_id, 'w:bench', clock(), payload, clock() FROM unparked
    RETURNING 1
)
SELECT count(*) FROM queued

-- fetch: lock the wakes
WITH taken AS (
    UPDATE worker_queue
    SET lock_worker = 'bench', lock_incarnation = 'bench', lock_token = %(token)s,
        locked_until = clock() + interval '30 s', attempts = attempts + 1
    WHERE instance_id = ANY (%(instances)s::text[]) AND execution_id = 1 AND activity_id = %(activity)s
    RETURNING payload
)
SELECT count(*) FROM taken

-- commit: what a wake of each of them commits, and nothing that it checks
WITH acked AS (
    DELETE FROM worker_queue
    WHERE instance_id = ANY (%(instances)s::text[]) AND execution_id = 1 AND activity_id = %(activity)s
      AND lock_token = %(token)s
    RETURNING 1
), recorded AS (
    INSERT INTO history (instance_id, execution_id, event_id, event, recorded_at, recorded_events, recorded_by)
    SELECT one, 1, %(activity)s + e.n, e.event, e.at, e.events, e.worker
    FROM unnest(%(instances)s::text[]) AS i (one),
        (VALUES (1, %(completed)s, clock(), 2, 'bench'), (2, %(scheduled)s, NULL, NULL, NULL)) AS e (n, event, at, events, worker)
), advanced AS (
    UPDATE instances SET event_count = %(activity)s + 2, updated_at = clock()
    WHERE instance_id = ANY (%(instances)s::text[])
), saved AS (
    UPDATE session_states SET state = %(state)s, version = version + 1, updated_at = clock()
    WHERE session_id = ANY (%(instances)s::text[])
), moved AS (
    UPDATE journals
    SET processed = last_seq, last_seq = last_seq + cardinality(%(entries)s::text[]), size = size + 400, ended_wake = %(wake)s,
        ended_attempt = 1, updated_at = clock()
    WHERE session_id = ANY (%(instances)s::text[])
    RETURNING journal_id, processed, last_seq
), added AS (
    INSERT INTO journal_entries (journal_id, seq, recorded_at, is_input, kind, wake_id, payload)
    SELECT m.journal_id, m.processed + e.n, clock(), false, e.kind, %(wake)s, e.entry
    FROM moved m, unnest(%(kinds)s::text[], %(entries)s::text[]) WITH ORDINALITY AS e (kind, entry, n)
), ended AS (
    INSERT INTO journal_wakes (journal_id, processed, seq, base, read, attempt, outcome, reason, wake_id)
    SELECT journal_id, processed, last_seq, processed - 1, processed, 1, 'done', 'end_turn', %(wake)s FROM moved
), parked AS (
    UPDATE parked_items SET activity_id = %(activity)s + 2, payload = %(payload)s, parked = true
    WHERE instance_id = ANY (%(instances)s::text[])
)
SELECT count(*) FROM acked

-- read: the conversations whose reply is there, and the replies
SELECT count(DISTINCT e.journal_id), array_agg(e.payload)
FROM unnest(%(instances)s::text[]) AS i (one)
CROSS JOIN LATERAL (SELECT j.journal_id, j.processed FROM journals j WHERE j.session_id = one OFFSET 0) j
CROSS JOIN LATERAL (
    SELECT w.seq FROM journal_wakes w
    WHERE w.journal_id = j.journal_id AND w.processed = j.processed AND w.wake_id = %(wake)s OFFSET 0
) w
CROSS JOIN LATERAL (
    SELECT e.* FROM journal_entries e
    WHERE e.journal_id = j.journal_id AND e.seq > j.processed AND e.seq <= w.seq OFFSET 0
) e

-- begin: conversations with a parked wake each, on a session of their own
WITH started AS (
    INSERT INTO instances (instance_id, generation, name, status, owner_worker, owner_incarnation, created_at, updated_at)
    SELECT one, '1', 'talk.conversation', 'running', 'bench', 'bench', clock(), clock()
    FROM unnest(%(instances)s::text[]) AS i (one)
), held AS (
    INSERT INTO sessions (session_id, worker_id, incarnation, epoch, locked_until, touched_at)
    SELECT one, 'bench', 'bench', nextval('epochs'), clock() + interval '300 s', clock()
    FROM unnest(%(instances)s::text[]) AS i (one)
), kept AS (
    INSERT INTO session_states (
        session_id, state, encoding, schema_version, kind, labels, participants, version, epoch, created_at, updated_at)
    SELECT one, %(state)s, 'plain', 1, 'talk', '{}', '[]', 1, 1, clock(), clock()
    FROM unnest(%(instances)s::text[]) AS i (one)
), opened AS (
    INSERT INTO journals (journal_id, session_id, kind, oldest_at, created_at, updated_at)
    SELECT n, one, 'talk', clock(), clock(), clock()
    FROM unnest(%(instances)s::text[]) WITH ORDINALITY AS i (one, n)
)
INSERT INTO parked_items (instance_id, generation, execution_id, activity_id, name, session_id, payload, parked)
SELECT one, '1', 1, %(activity)s, 'talk.wake', one, %(payload)s, true FROM unnest(%(instances)s::text[]) AS i (one)

-- written: wakes with all their entries, and wakes that are parked
SELECT (SELECT count(*) FROM journal_wakes w
        WHERE 5 = (SELECT count(*) FROM journal_entries e
                   WHERE e.journal_id = w.journal_id AND e.seq BETWEEN w.processed AND w.seq)),
    (SELECT count(*) FROM parked_items WHERE parked)
