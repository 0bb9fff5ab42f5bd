-- touch: the sessions of these items, as far as the caller holds them
), held AS MATERIALIZED (
    SELECT s.session_id FROM sessions s
    WHERE s.session_id = ANY (ARRAY (SELECT session_id FROM ours))
      AND holds_session(s, %(worker)s, %(incarnation)s)
      AND s.locked_until < clock() + %(touch_below)s * interval '1 s'
      AND EXISTS (SELECT FROM alive_workers WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s)
    ORDER BY s.session_id FOR NO KEY UPDATE SKIP LOCKED -- one that another transaction holds is touched the next time
), touched AS (
    UPDATE sessions s SET locked_until = clock() + %(session_lock)s * interval '1 s', touched_at = clock()
    FROM held WHERE s.session_id = held.session_id

-- renew: extend live tokens of this incarnation, and touch their sessions as far as it holds them
-- An item whose row another transaction holds is extended the next time: no renewal waits for it, and its token is live.
WITH live AS MATERIALIZED (
    SELECT l.n, q.instance_id, q.execution_id, q.activity_id, l.token
    FROM unnest(%(instance)s, %(execution)s, %(activity)s, %(token)s)
         WITH ORDINALITY AS l (instance_id, execution_id, activity_id, token, n)
    JOIN worker_queue q USING (instance_id, execution_id, activity_id)
    WHERE q.lock_token = l.token AND q.lock_incarnation = %(incarnation)s AND q.locked_until > clock()
), ours AS MATERIALIZED (
    SELECT q.instance_id, q.execution_id, q.activity_id, q.session_id
    FROM (SELECT DISTINCT instance_id, execution_id, activity_id, token FROM live) l
    JOIN worker_queue q USING (instance_id, execution_id, activity_id)
    WHERE q.lock_token = l.token AND q.lock_incarnation = %(incarnation)s AND q.locked_until > clock()
    ORDER BY q.instance_id, q.execution_id, q.activity_id FOR NO KEY UPDATE OF q SKIP LOCKED
), renewed AS (
    UPDATE worker_queue q SET locked_until = clock() + %(item_lock)s * interval '1 s'
    FROM ours o
    WHERE q.instance_id = o.instance_id AND q.execution_id = o.execution_id AND q.activity_id = o.activity_id
-- include touch
)
SELECT n FROM live

-- check: which locks still have their token
SELECT l.n
FROM unnest(%(instance)s, %(execution)s, %(activity)s, %(token)s)
     WITH ORDINALITY AS l (instance_id, execution_id, activity_id, token, n)
JOIN worker_queue q USING (instance_id, execution_id, activity_id)
WHERE q.lock_token = l.token

-- states: that come with results
FROM unnest(%(state_turn)s, %(state_session)s, %(state_base)s, %(state_epoch)s, %(state_encoding)s,
            %(state_schema)s, %(state_kind)s, %(state_name)s, %(state_parent)s, %(state_labels)s,
            %(state_messages)s, %(state_participants)s)
     WITH ORDINALITY AS w (n, session_id, base, epoch, encoding, schema, kind, name, parent, labels, messages,
                           participants, ord)

-- ack: remove items by live token, send their results, and touch their sessions as far as the caller holds them
-- Parts: `state` when states come with the results, or parts of guests; `plain` when none does.
WITH
-- [plain
ours AS MATERIALIZED (
-- plain]
-- [state
locked AS MATERIALIZED (
-- state]
    SELECT l.n, l.message, q.instance_id, q.execution_id, q.activity_id, q.session_id
    FROM unnest(%(instance)s, %(execution)s, %(activity)s, %(token)s, %(message)s)
         WITH ORDINALITY AS l (instance_id, execution_id, activity_id, token, message, n)
    JOIN worker_queue q USING (instance_id, execution_id, activity_id)
    WHERE q.lock_token = l.token AND q.locked_until > clock()
    ORDER BY q.instance_id, q.execution_id, q.activity_id FOR UPDATE OF q
-- [state
), pinned AS MATERIALIZED (
    -- See commit.
    SELECT s.session_id, s.epoch, x.writes
    FROM (
        SELECT session_id, array_agg(ord) FILTER (WHERE ord IS NOT NULL) AS writes
        FROM (
            SELECT session_id, NULL::bigint AS ord FROM locked
            UNION ALL
            SELECT * FROM unnest(%(state_session)s) WITH ORDINALITY
        ) wanted
        GROUP BY session_id
    ) x JOIN sessions s USING (session_id)
    ORDER BY s.session_id FOR NO KEY UPDATE OF s
), record AS MATERIALIZED (
    SELECT w.ord, w.base, w.epoch AS writer, r.version, r.epoch
    FROM unnest(%(state_session)s, %(state_base)s, %(state_epoch)s)
         WITH ORDINALITY AS w (session_id, base, epoch, ord)
    JOIN session_states r USING (session_id)
    WHERE (SELECT count(*) FROM pinned) >= 0
    ORDER BY r.session_id FOR NO KEY UPDATE OF r
-- tables of guests
), passed AS MATERIALIZED (
    SELECT n, ord, row_number() OVER (PARTITION BY session_id ORDER BY ord) AS place
    FROM unnest(%(state_turn)s, %(state_session)s, %(state_base)s) WITH ORDINALITY AS w (n, session_id, base, ord)
    WHERE (w.n IN (SELECT n FROM locked)) IS TRUE
      AND (w.ord IN (SELECT ord FROM record WHERE version = base AND (epoch > writer) IS NOT TRUE)
           OR w.base = 0 AND w.ord NOT IN (SELECT ord FROM record))
      AND w.ord NOT IN (
          SELECT o.ord FROM pinned p, unnest(p.writes) AS o (ord) WHERE p.epoch > (%(state_epoch)s)[o.ord])
-- fences of guests
), ours AS MATERIALIZED (
    SELECT * FROM locked
    WHERE (n NOT IN (SELECT unnest(%(state_turn)s)) OR n IN (SELECT n FROM passed WHERE place = 1))
-- fences of guests
), states_added AS (
    INSERT INTO session_states (session_id, state, encoding, schema_version, kind, name, parent, labels, message_count,
        participants, version, epoch, created_at, updated_at)
    SELECT w.session_id, (%(state)s)[w.ord], w.encoding, w.schema, w.kind, w.name, w.parent, w.labels::jsonb,
        w.messages, w.participants::jsonb, 1, w.epoch, c.now, c.now
-- include states
    CROSS JOIN (SELECT clock() AS now) c
    WHERE w.base = 0 AND (w.ord IN (SELECT ord FROM passed WHERE place = 1)) IS TRUE
    ORDER BY w.session_id
    RETURNING 1
), states_written AS (
    UPDATE session_states r
    SET state = (%(state)s)[w.ord], encoding = w.encoding, schema_version = w.schema, kind = w.kind, name = w.name,
        parent = w.parent, labels = w.labels::jsonb, message_count = w.messages, participants = w.participants::jsonb,
        version = w.base + 1, epoch = w.epoch, turn = NULL, updated_at = clock()
-- include states
    WHERE r.session_id = w.session_id AND w.base > 0 AND (w.ord IN (SELECT ord FROM passed WHERE place = 1)) IS TRUE
    RETURNING 1
-- state]
-- include touch
), removed AS (
    DELETE FROM worker_queue q USING ours o
    WHERE q.instance_id = o.instance_id AND q.execution_id = o.execution_id AND q.activity_id = o.activity_id
      AND o.message IS NOT NULL
), sent AS (
    INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
    SELECT o.instance_id, r.route, (SELECT clock()), o.message FROM ours o JOIN message_routes r USING (instance_id)
    WHERE o.message IS NOT NULL
    ORDER BY o.n
)
SELECT n FROM ours

-- abandon: give items back by live token, and with them, where asked, their sessions
WITH ours AS MATERIALIZED (
    SELECT l.*, q.session_id, q.name, q.attempts
    FROM unnest(%(instance)s, %(execution)s, %(activity)s, %(token)s, %(delay)s, %(failed)s, %(counted)s, %(unknown)s,
                %(needs)s, %(release)s, %(error)s, %(error_type)s, %(stack)s)
         WITH ORDINALITY AS l (instance_id, execution_id, activity_id, token, delay, failed, counted, unknown, needs,
                               release, error, error_type, stack, n)
    JOIN worker_queue q USING (instance_id, execution_id, activity_id)
    WHERE q.lock_token = l.token AND q.locked_until > clock()
    ORDER BY q.instance_id, q.execution_id, q.activity_id FOR NO KEY UPDATE OF q
), held AS MATERIALIZED (
    SELECT s.session_id FROM sessions s
    WHERE s.session_id = ANY (ARRAY (SELECT session_id FROM ours WHERE release))
      AND holds_session(s, %(worker)s, %(incarnation)s)
      AND EXISTS (SELECT FROM alive_workers WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s)
    ORDER BY s.session_id FOR NO KEY UPDATE
), freed AS (
    UPDATE sessions s SET locked_until = clock(), freed_by = 'code_missing' FROM held WHERE s.session_id = held.session_id
), given AS (
    UPDATE worker_queue q
    SET lock_worker = NULL, lock_incarnation = NULL, lock_token = NULL, locked_until = NULL,
        visible_at = CASE WHEN o.delay > 0 THEN clock() + o.delay * interval '1 s' ELSE least(q.visible_at, clock()) END,
        attempts = q.attempts - (NOT o.counted)::int, failures = q.failures + o.failed::int,
        failed_at = CASE WHEN o.failed THEN clock() ELSE q.failed_at END,
        unknown_since = CASE WHEN o.unknown THEN coalesce(q.unknown_since, clock()) ELSE q.unknown_since END,
        needs = CASE WHEN o.unknown THEN o.needs ELSE q.needs END, last_error = coalesce(o.error, q.last_error),
        waits_since = CASE WHEN q.attend_at IS NOT NULL THEN clock() + greatest(o.delay, 0) * interval '1 s' END,
        attend_at = CASE WHEN q.attend_at IS NOT NULL AND q.limited IS NOT TRUE
                         THEN clock() + (greatest(o.delay, 0) + least(q.takeover_after, q.fail_after)) * interval '1 s' END,
        session_id = CASE WHEN q.limited IS NOT TRUE THEN q.session_id END,
        gate_session = CASE WHEN q.limited THEN coalesce(q.session_id, q.gate_session) END, passed_over = NULL,
        route = CASE
            WHEN q.route = 'blocked' THEN 'blocked' -- it was to be failed, and waits behind others again
            WHEN q.gate IS NOT NULL THEN 'gate'
            WHEN q.session_id IS NULL THEN 'free'
            WHEN q.session_id IN (SELECT session_id FROM held) THEN 'new'
            ELSE coalesce((SELECT s.route FROM session_routes s WHERE s.session_id = q.session_id), 'new')
        END
    FROM ours o
    WHERE q.instance_id = o.instance_id AND q.execution_id = o.execution_id AND q.activity_id = o.activity_id
), others AS MATERIALIZED (
    SELECT q.instance_id, q.execution_id, q.activity_id
    FROM worker_queue q
    WHERE q.session_id = ANY (ARRAY (SELECT session_id FROM held)) AND q.route <> 'new'
      AND (q.instance_id, q.execution_id, q.activity_id) NOT IN (
        SELECT instance_id, execution_id, activity_id FROM ours)
    LIMIT %(reroute)s FOR NO KEY UPDATE OF q SKIP LOCKED
), rerouted AS (
    UPDATE worker_queue q SET route = 'new' FROM others o
    WHERE q.instance_id = o.instance_id AND q.execution_id = o.execution_id AND q.activity_id = o.activity_id
), kept AS (
    INSERT INTO failures (instance_id, execution_id, activity_id, attempt, kind, name, error_type, is_retried, failed_at,
        error, stack)
    SELECT o.instance_id, o.execution_id, o.activity_id, o.attempts, 'activity', o.name, o.error_type, true,
        (SELECT clock()), coalesce(o.error, o.error_type), o.stack
    FROM ours o WHERE o.failed
    ON CONFLICT DO NOTHING
), dropped AS (
    -- A short range of attempts: those before it have lost their stacks already.
    UPDATE failures f SET stack = NULL FROM ours o
    WHERE o.failed AND o.attempts > %(first)s + %(last)s
      AND f.instance_id = o.instance_id AND f.execution_id = o.execution_id AND f.activity_id = o.activity_id
      AND f.attempt > %(first)s AND f.attempt BETWEEN o.attempts - 2 * %(last)s AND o.attempts - %(last)s AND f.stack IS NOT NULL
)
SELECT n FROM ours

-- begin: count a delivery that its fetch did not count; if its worker ends, the item comes again behind others
UPDATE worker_queue SET attempts = greatest(attempts, %(attempt)s), visible_at = clock() + %(pause)s * interval '1 s'
WHERE instance_id = %(instance)s AND execution_id = %(execution)s AND activity_id = %(activity)s
  AND lock_token = %(token)s AND lock_incarnation = %(incarnation)s AND locked_until > clock()
RETURNING 1

-- release_unknown_locks: free items locked under tokens that this incarnation does not know; `delivered` keep their attempt
WITH unknown_lock AS MATERIALIZED (
    SELECT instance_id, execution_id, activity_id FROM worker_queue
    WHERE lock_incarnation = %(incarnation)s AND lock_token NOT IN (SELECT unnest(%(token)s))
    ORDER BY instance_id, execution_id, activity_id FOR NO KEY UPDATE
)
UPDATE worker_queue q
SET lock_worker = NULL, lock_incarnation = NULL, lock_token = NULL, locked_until = NULL,
    visible_at = least(q.visible_at, clock()), attempts = q.attempts - (q.lock_token <> ALL (%(delivered)s))::int
FROM unknown_lock u
WHERE q.instance_id = u.instance_id AND q.execution_id = u.execution_id AND q.activity_id = u.activity_id
RETURNING 1
