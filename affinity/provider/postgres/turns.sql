-- commit: commits turns, each whole or not at all
-- n is the turn's number in the batch, ord an element's number in its column. IS TRUE: see work_items.sql.
-- Locks are taken in the order that all verbs keep: instances, worker_queue, sessions, session_states, each by key.
-- What is written after that is filtered by one flag a turn: `(SELECT flags FROM ok)[n]` is read in constant time, where
-- a join of the batch's columns with the turns would be quadratic.
-- Parts between marks are left out for batches that have no use for them: turns.py says which stay when.
WITH fenced AS MATERIALIZED (
    SELECT t.n
    FROM unnest(%(instance)s, %(execution)s, %(events)s) WITH ORDINALITY AS t (instance_id, execution_id, events, n)
    JOIN instances i USING (instance_id)
    WHERE i.owner_worker = %(worker)s AND i.owner_incarnation = %(incarnation)s AND i.status IN ('pending', 'running')
      AND i.execution_id = t.execution_id AND i.event_count = t.events
    ORDER BY i.instance_id FOR NO KEY UPDATE OF i
), locked AS MATERIALIZED (
    -- Items to remove: acked by live token, cancelled, or of an instance that finishes.
    SELECT d.n, d.ord, q.instance_id, q.execution_id, q.activity_id, q.session_id
    FROM (
        SELECT * FROM unnest(%(ack_turn)s, %(ack_instance)s, %(ack_execution)s, %(ack_activity)s, %(ack_token)s)
            WITH ORDINALITY AS a (n, instance_id, execution_id, activity_id, token, ord)
        -- [rest
        UNION ALL
        SELECT *, NULL, NULL
        FROM unnest(%(cancel_turn)s, %(cancel_instance)s, %(cancel_execution)s, %(cancel_activity)s)
        UNION ALL
        SELECT f.n, q.*, NULL, NULL
        FROM unnest(%(finish_turn)s, %(finish_instance)s) AS f (n, instance_id)
        -- OFFSET 0: one instance after the other, though statistics may say that any instance has most of the queue.
        CROSS JOIN LATERAL (
            SELECT instance_id, execution_id, activity_id FROM worker_queue WHERE instance_id = f.instance_id OFFSET 0
        ) q
        -- rest]
    ) d JOIN worker_queue q USING (instance_id, execution_id, activity_id)
    WHERE (d.ord IS NULL OR q.lock_token = d.token AND q.locked_until > clock())
      AND (SELECT count(*) FROM fenced) >= 0 -- always true: it makes the instances come first
    ORDER BY q.instance_id, q.execution_id, q.activity_id FOR UPDATE OF q
), lost AS MATERIALIZED (
    SELECT a.n, a.ord FROM unnest(%(ack_turn)s) WITH ORDINALITY AS a (n, ord)
    WHERE a.ord NOT IN (SELECT ord FROM locked WHERE ord IS NOT NULL)
-- [hold
), ending AS MATERIALIZED (
    -- Holds that end: by name, or with their execution. Nobody else changes them while the instance is locked.
    SELECT u.n, h.instance_id, h.execution_id, h.hold_id, h.session_id
    FROM unnest(%(unhold_turn)s, %(unhold_instance)s, %(unhold_execution)s, %(unhold_id)s)
         AS u (n, instance_id, execution_id, hold_id)
    JOIN session_holds h USING (instance_id, execution_id, hold_id)
    UNION
    SELECT e.n, h.instance_id, h.execution_id, h.hold_id, h.session_id
    FROM unnest(%(end_turn)s, %(end_instance)s) AS e (n, instance_id) JOIN session_holds h USING (instance_id)
-- hold]
-- [pinned
), pinned AS MATERIALIZED (
    -- Every row of sessions that is judged or written below, in one go, so that the order of locks holds. As it is once
    -- it is locked: a condition here would be asked of the snapshot first, and what it hid would look like no session.
    SELECT s.session_id, s.worker_id, s.incarnation, s.epoch, s.locked_until, x.writes
    FROM (
        SELECT session_id, array_agg(ord) FILTER (WHERE ord IS NOT NULL) AS writes
        FROM (
            SELECT session_id, NULL::bigint AS ord FROM locked WHERE ord IS NOT NULL
            UNION ALL
            SELECT session_id, NULL FROM unnest(%(item_session)s, %(item_here)s) AS w (session_id, here) WHERE here
            -- [state
            UNION ALL
            SELECT * FROM unnest(%(state_session)s) WITH ORDINALITY
            -- state]
            -- [hold
            UNION ALL
            SELECT session_id, NULL FROM ending
            UNION ALL
            SELECT unnest(%(hold_session)s), NULL
            UNION ALL
            -- Not written, but whoever moves it meanwhile waits, and then sees the watch.
            SELECT unnest(%(watch_session)s), NULL
            -- hold]
        ) wanted
        GROUP BY session_id
    ) x JOIN sessions s USING (session_id)
    ORDER BY s.session_id FOR NO KEY UPDATE OF s
-- pinned]
-- [state
), record AS MATERIALIZED (
    SELECT w.ord, w.base, w.epoch AS writer, r.version, r.epoch
    FROM unnest(%(state_session)s, %(state_base)s, %(state_epoch)s)
         WITH ORDINALITY AS w (session_id, base, epoch, ord)
    JOIN session_states r USING (session_id)
    WHERE (SELECT count(*) FROM pinned) >= 0 -- always true: it makes the sessions come first
    ORDER BY r.session_id FOR NO KEY UPDATE OF r
), conflict AS MATERIALIZED (
    SELECT w.n, w.ord FROM unnest(%(state_turn)s, %(state_base)s) WITH ORDINALITY AS w (n, base, ord)
    WHERE w.ord NOT IN (SELECT ord FROM record WHERE version = base AND (epoch > writer) IS NOT TRUE)
          AND (w.base > 0 OR w.ord IN (SELECT ord FROM record))
       OR w.ord IN (SELECT o.ord FROM pinned p, unnest(p.writes) AS o (ord) WHERE p.epoch > (%(state_epoch)s)[o.ord])
-- state]
-- [twice
), twice AS MATERIALIZED (
    -- Of several writes of one session the first passes, among those that would pass alone.
    SELECT n, ord
    FROM (
        SELECT n, ord, row_number() OVER (PARTITION BY session_id ORDER BY ord) AS place
        FROM unnest(%(state_turn)s, %(state_session)s) WITH ORDINALITY AS w (n, session_id, ord)
        WHERE n IN (SELECT n FROM fenced) AND n NOT IN (SELECT n FROM lost) AND n NOT IN (SELECT n FROM conflict)
    ) writes
    WHERE place > 1
-- twice]
), ok AS MATERIALIZED (
    SELECT array_agg(
        t.n IN (SELECT n FROM fenced) AND t.n NOT IN (SELECT n FROM lost)
        -- [state
        AND t.n NOT IN (SELECT n FROM conflict)
        -- state]
        -- [twice
        AND t.n NOT IN (SELECT n FROM twice)
        -- twice]
        AND EXISTS (SELECT FROM alive_workers WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s)
        ORDER BY t.n) AS flags
    FROM generate_series(1, cardinality(%(instance)s)) AS t (n)
), held AS MATERIALIZED (
    -- Sessions that we hold, and hold until we commit: those of results, and those that are asked to run here.
    -- [unpinned
    SELECT s.session_id, s.epoch, s.locked_until FROM sessions s
    WHERE s.session_id = ANY (ARRAY (
    -- unpinned]
    -- [pinned
    SELECT s.session_id, s.epoch, s.locked_until FROM pinned s
    WHERE (s.session_id IN (
    -- pinned]
            SELECT session_id FROM locked WHERE ord IS NOT NULL AND (SELECT flags FROM ok)[n]
            UNION
            SELECT session_id FROM unnest(%(item_turn)s, %(item_session)s, %(item_here)s) AS w (n, session_id, here)
            WHERE here AND (SELECT flags FROM ok)[n]))
    -- [pinned
      IS TRUE
    -- pinned]
      AND (s.worker_id = %(worker)s) IS TRUE AND s.incarnation = %(incarnation)s AND s.locked_until > clock()
    -- [unpinned
    ORDER BY s.session_id FOR NO KEY UPDATE
    -- unpinned]
-- [unheld
), touched AS (
    UPDATE sessions s SET locked_until = clock() + %(session_lock)s * interval '1 s', touched_at = clock()
    FROM held WHERE s.session_id = held.session_id
      AND held.locked_until < clock() + %(touch_below)s * interval '1 s'
-- unheld]
-- [hold
), holds_removed AS (
    DELETE FROM session_holds h USING ending e
    WHERE h.instance_id = e.instance_id AND h.execution_id = e.execution_id AND h.hold_id = e.hold_id
      AND (SELECT flags FROM ok)[e.n]
    RETURNING h.session_id
), freed AS MATERIALIZED (
    -- All deletions are done before the first row of this comes out, so latest_hold finds what is left.
    SELECT session_id, latest_hold(session_id) AS until FROM (SELECT DISTINCT session_id FROM holds_removed) u
), bound AS MATERIALIZED (
    -- One update for all reasons: a second one of the same row in one statement would be lost.
    SELECT p.session_id, p.locked_until, c.now, t.touch,
        greatest(
            CASE WHEN t.touch THEN c.now + %(session_lock)s * interval '1 s'
                 WHEN f.session_id IS NULL THEN p.locked_until
                 ELSE least(p.locked_until, greatest(c.now + %(session_lock)s * interval '1 s', f.until)) END,
            CASE WHEN p.locked_until > c.now AND w.worker_id IS NOT NULL
                 THEN c.now + h.seconds * interval '1 s' END) AS until
    FROM pinned p
    CROSS JOIN (SELECT clock() AS now) c
    LEFT JOIN freed f ON f.session_id = p.session_id
    LEFT JOIN (
        SELECT session_id, max(seconds) AS seconds
        FROM unnest(%(hold_turn)s, %(hold_session)s, %(hold_seconds)s) AS h (n, session_id, seconds)
        WHERE (SELECT flags FROM ok)[n]
        GROUP BY session_id
    ) h ON h.session_id = p.session_id
    LEFT JOIN alive_workers w ON w.worker_id = p.worker_id AND w.incarnation = p.incarnation
    CROSS JOIN LATERAL (
        SELECT (p.session_id IN (SELECT session_id FROM held)
                AND p.locked_until < c.now + %(touch_below)s * interval '1 s') IS TRUE AS touch
    ) t
), bounded AS (
    UPDATE sessions s SET locked_until = b.until, touched_at = CASE WHEN b.touch THEN b.now ELSE s.touched_at END
    FROM bound b WHERE s.session_id = b.session_id AND b.until <> b.locked_until
), holds_added AS (
    INSERT INTO session_holds (instance_id, execution_id, hold_id, session_id, until, session_lock)
    SELECT instance_id, execution_id, hold_id, session_id, clock() + seconds * interval '1 s', %(session_lock)s
    FROM unnest(%(hold_turn)s, %(hold_instance)s, %(hold_execution)s, %(hold_id)s, %(hold_session)s, %(hold_seconds)s)
         AS h (n, instance_id, execution_id, hold_id, session_id, seconds)
    WHERE (SELECT flags FROM ok)[n]
    ON CONFLICT (instance_id, execution_id, hold_id) DO UPDATE
    SET session_id = excluded.session_id, until = excluded.until, session_lock = excluded.session_lock
), watches_added AS (
    INSERT INTO session_watches (session_id, instance_id, payload)
    SELECT session_id, instance_id, payload
    FROM unnest(%(watch_turn)s, %(watch_session)s, %(watch_instance)s, %(watch)s)
         AS w (n, session_id, instance_id, payload)
    WHERE (SELECT flags FROM ok)[n]
    ON CONFLICT (session_id, instance_id) DO UPDATE SET payload = excluded.payload
), watches_removed AS (
    DELETE FROM session_watches
    WHERE instance_id = ANY (ARRAY (
        SELECT instance_id FROM unnest(%(finish_turn)s, %(finish_instance)s) AS f (n, instance_id)
        WHERE (SELECT flags FROM ok)[n]))
-- hold]
-- [state
), states_added AS (
    -- Plain: should somebody else write the first one too, one of us fails, which `errors.py` calls contention.
    INSERT INTO session_states (session_id, state, encoding, schema_version, kind, name, parent, labels, message_count,
        participants, version, epoch, created_at, updated_at)
    SELECT w.session_id, (%(state)s)[w.ord], w.encoding, w.schema, w.kind, w.name, w.parent, w.labels::jsonb,
        w.messages, w.participants::jsonb, 1, w.epoch, c.now, c.now
    FROM unnest(%(state_turn)s, %(state_session)s, %(state_base)s, %(state_epoch)s, %(state_encoding)s,
                %(state_schema)s, %(state_kind)s, %(state_name)s, %(state_parent)s, %(state_labels)s,
                %(state_messages)s, %(state_participants)s)
         WITH ORDINALITY AS w (n, session_id, base, epoch, encoding, schema, kind, name, parent, labels, messages,
                               participants, ord)
    CROSS JOIN (SELECT clock() AS now) c
    WHERE w.base = 0 AND (SELECT flags FROM ok)[w.n]
    ORDER BY w.session_id
), states_written AS (
    -- The state itself is taken from its array where it is written: a join would copy it once more, and to a file.
    UPDATE session_states r
    SET state = (%(state)s)[w.ord], encoding = w.encoding, schema_version = w.schema, kind = w.kind, name = w.name,
        parent = w.parent, labels = w.labels::jsonb, message_count = w.messages, participants = w.participants::jsonb,
        version = w.base + 1, epoch = w.epoch, turn = NULL, updated_at = clock()
    FROM unnest(%(state_turn)s, %(state_session)s, %(state_base)s, %(state_epoch)s, %(state_encoding)s,
                %(state_schema)s, %(state_kind)s, %(state_name)s, %(state_parent)s, %(state_labels)s,
                %(state_messages)s, %(state_participants)s)
         WITH ORDINALITY AS w (n, session_id, base, epoch, encoding, schema, kind, name, parent, labels, messages,
                               participants, ord)
    WHERE r.session_id = w.session_id AND w.base > 0 AND (SELECT flags FROM ok)[w.n]
-- state]
), items_removed AS (
    DELETE FROM worker_queue q
    USING (SELECT DISTINCT instance_id, execution_id, activity_id FROM locked WHERE (SELECT flags FROM ok)[n]) d
    WHERE q.instance_id = d.instance_id AND q.execution_id = d.execution_id AND q.activity_id = d.activity_id
-- [rest
), messages_removed AS (
    DELETE FROM orchestrator_queue o
    WHERE o.id = ANY (ARRAY (
        SELECT id FROM unnest(%(consume_turn)s, %(consume_id)s) AS c (n, id) WHERE (SELECT flags FROM ok)[n]
        UNION
        SELECT o.id
        FROM unnest(%(timer_turn)s, %(timer_instance)s, %(timer_execution)s, %(timer_id)s)
             AS c (n, instance_id, timer_execution, timer_id)
        JOIN orchestrator_queue o USING (instance_id, timer_execution, timer_id)
        WHERE (SELECT flags FROM ok)[n]
        UNION
        SELECT o.id
        FROM unnest(%(finish_turn)s, %(finish_instance)s) AS f (n, instance_id)
        JOIN orchestrator_queue o USING (instance_id)
        WHERE (SELECT flags FROM ok)[n]))
-- rest]
), events AS (
    INSERT INTO history (instance_id, execution_id, event_id, event)
    SELECT instance_id, execution_id, event_id, event
    FROM unnest(%(event_turn)s, %(event_instance)s, %(event_execution)s, %(event_id)s, %(event)s)
         AS e (n, instance_id, execution_id, event_id, event)
    WHERE (SELECT flags FROM ok)[n]
), placed AS MATERIALIZED (
    SELECT w.*, h.epoch, h.worker_id AS holder,
        coalesce(w.here AND w.delay <= 0
        AND EXISTS (
            SELECT FROM alive_workers
            WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s AND NOT draining)
        -- With the epoch as it is now, or not at all: whoever saves a state by hand gives the session another.
        AND (w.session_id IS NULL
             OR h.incarnation = %(incarnation)s AND (h.session_id, h.epoch) IN (SELECT session_id, epoch FROM held)),
        false) AS locked
    FROM unnest(%(item_turn)s, %(item_instance)s, %(item_execution)s, %(item_activity)s, %(item_name)s,
                %(item_session)s, %(item_payload)s, %(item_delay)s, %(item_here)s, %(item_claim)s)
         WITH ORDINALITY AS w (n, instance_id, execution_id, activity_id, name, session_id, payload, delay, here, claim,
                               ord)
    LEFT JOIN held_sessions h ON h.session_id = w.session_id
    WHERE (SELECT flags FROM ok)[w.n]
), items_added AS (
    INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload,
        lock_worker, lock_incarnation, lock_token, locked_until, attempts, enqueued_at)
    SELECT instance_id, execution_id, activity_id, name, session_id,
        CASE WHEN session_id IS NULL THEN 'free' WHEN holder IS NOT NULL THEN 'w:' || holder
             WHEN claim AND delay <= 0 THEN %(offer)s ELSE 'new' END,
        -- Items of one batch are a microsecond apart, so that they are delivered in their order.
        (SELECT clock()) + delay * interval '1 s' + ord * interval '1 us', payload,
        CASE WHEN locked THEN %(worker)s END, CASE WHEN locked THEN %(incarnation)s END,
        CASE WHEN locked THEN %(token)s || '.' || ord END,
        CASE WHEN locked THEN clock() + %(item_lock)s * interval '1 s' END, locked::int, clock()
    FROM placed
-- [rest
), child AS MATERIALIZED (
    SELECT *, row_number() OVER (PARTITION BY instance_id ORDER BY ord) AS copy
    FROM unnest(%(child_turn)s, %(child_instance)s, %(child_name)s, %(child_version)s, %(child_start)s,
                %(child_parent)s, %(child_delay)s, %(child_on_exists)s)
         WITH ORDINALITY AS c (n, instance_id, name, version, start, parent_id, delay, on_exists, ord)
    WHERE (SELECT flags FROM ok)[n]
), created AS (
    INSERT INTO instances (instance_id, name, version, parent_id, created_at, updated_at)
    SELECT instance_id, name, version, parent_id, (SELECT clock()), (SELECT clock())
    FROM child WHERE copy = 1 ORDER BY instance_id
    ON CONFLICT (instance_id) DO NOTHING
    RETURNING instance_id
), started AS (
    INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
    SELECT instance_id, 'new', (SELECT clock()) + delay * interval '1 s', start
    FROM child WHERE (copy = 1 AND instance_id IN (SELECT instance_id FROM created)) IS TRUE
    ORDER BY ord
), sent AS (
    INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload, timer_execution, timer_id)
    SELECT m.instance_id, coalesce('w:' || w.worker_id, 'new'), (SELECT clock()) + m.delay * interval '1 s', m.payload,
        m.timer_execution, m.timer_id
    FROM (
        SELECT *
        FROM unnest(%(message_turn)s, %(message_instance)s, %(message)s, %(message_delay)s, %(message_execution)s,
                    %(message_timer)s)
             WITH ORDINALITY AS m (n, instance_id, payload, delay, timer_execution, timer_id, ord)
        UNION ALL
        SELECT n, parent_id, on_exists, 0, NULL, NULL, ord
        FROM child
        WHERE on_exists IS NOT NULL AND (copy = 1 AND instance_id IN (SELECT instance_id FROM created)) IS NOT TRUE
    ) m
    JOIN instances i USING (instance_id)
    LEFT JOIN alive_workers w ON w.worker_id = i.owner_worker AND w.incarnation = i.owner_incarnation
    WHERE (SELECT flags FROM ok)[m.n] AND i.status IN ('pending', 'running')
      AND (m.instance_id IN (
          SELECT instance_id FROM unnest(%(finish_turn)s, %(finish_instance)s) AS f (n, instance_id)
          WHERE (SELECT flags FROM ok)[n])) IS NOT TRUE
    ORDER BY m.n, m.ord
-- rest]
), advanced AS (
    -- [same
    UPDATE instances i
    SET event_count = i.event_count + t.added, claims = 0, unknown_since = NULL, updated_at = clock()
    FROM unnest(%(instance)s, %(added)s) WITH ORDINALITY AS t (instance_id, added, n)
    -- same]
    -- [update
    UPDATE instances i
    SET execution_id = i.execution_id + t.continued::int,
        event_count = CASE WHEN t.continued THEN 0 ELSE i.event_count + t.added END,
        status = coalesce(t.status, i.status), version = coalesce(t.version, i.version),
        custom_status = coalesce(t.custom_status, i.custom_status), output = coalesce(t.output, i.output),
        error = coalesce(t.error, i.error), claims = 0, unknown_since = NULL, updated_at = clock()
    FROM unnest(%(instance)s, %(added)s, %(status)s, %(version)s, %(custom_status)s, %(output)s, %(error)s,
                %(continued)s)
         WITH ORDINALITY AS t (instance_id, added, status, version, custom_status, output, error, continued, n)
    -- update]
    WHERE i.instance_id = t.instance_id AND (SELECT flags FROM ok)[t.n]
)
-- What the caller cannot know: which turns were committed, acks that were lost, items that were locked or have a holder.
SELECT 'turns', NULL::bigint, NULL::bigint, NULL::text, flags FROM ok
UNION ALL SELECT 'lost', ord, NULL, NULL, NULL FROM lost
UNION ALL SELECT 'here', ord, epoch, NULL, NULL FROM placed WHERE locked
UNION ALL SELECT 'there', ord, NULL, holder, NULL FROM placed WHERE holder IS NOT NULL AND NOT locked
-- [state
UNION ALL SELECT 'conflict', ord, NULL, NULL, NULL FROM conflict
-- state]
-- [twice
UNION ALL SELECT 'conflict', ord, NULL, NULL, NULL FROM twice
-- twice]

-- plain: commits a batch in which every turn takes results and queues work, and does nothing else; all of it or nothing
-- Most batches are such, and pass. So nothing is asked first: rows are written where they are as they must be, and at
-- the end it is counted whether they all were. If not, an error undoes everything, and `commit` judges turn by turn.
-- Turns and results come in the order of their keys: that is the order in which their rows are locked.
-- Part `anywhere` finds out where the new work belongs; part `here` takes for granted that all of it is to be locked by
-- us, so that there is no plan for anything else to start, and counts that as well.
WITH advanced AS (
    UPDATE instances i
    SET event_count = i.event_count + t.added, claims = 0, unknown_since = NULL, updated_at = clock()
    FROM unnest(%(instance)s, %(execution)s, %(events)s, %(added)s) AS t (instance_id, execution_id, events, added)
    WHERE i.instance_id = t.instance_id
      AND i.owner_worker = %(worker)s AND i.owner_incarnation = %(incarnation)s AND i.status IN ('pending', 'running')
      AND i.execution_id = t.execution_id AND i.event_count = t.events
    RETURNING 1
), removed AS (
    DELETE FROM worker_queue q
    USING unnest(%(ack_instance)s, %(ack_execution)s, %(ack_activity)s, %(ack_token)s)
          AS a (instance_id, execution_id, activity_id, token)
    WHERE q.instance_id = a.instance_id AND q.execution_id = a.execution_id AND q.activity_id = a.activity_id
      AND q.lock_token = a.token AND q.locked_until > clock()
      AND (SELECT count(*) FROM advanced) >= 0 -- always true: it makes the instances come first
    RETURNING q.session_id
), held AS MATERIALIZED (
    SELECT s.session_id, s.epoch, s.locked_until FROM sessions s
    WHERE s.session_id = ANY (ARRAY (SELECT session_id FROM removed) || %(here)s)
      AND (s.worker_id = %(worker)s) IS TRUE AND s.incarnation = %(incarnation)s AND s.locked_until > clock()
    ORDER BY s.session_id FOR NO KEY UPDATE
), touched AS (
    UPDATE sessions s SET locked_until = clock() + %(session_lock)s * interval '1 s', touched_at = clock()
    FROM held WHERE s.session_id = held.session_id
      AND held.locked_until < clock() + %(touch_below)s * interval '1 s'
), events AS (
    INSERT INTO history (instance_id, execution_id, event_id, event)
    SELECT * FROM unnest(%(event_instance)s, %(event_execution)s, %(event_id)s, %(event)s)
-- [anywhere
), placed AS MATERIALIZED (
    SELECT w.*, h.epoch, h.worker_id AS holder,
        coalesce(w.here AND w.delay <= 0
        AND EXISTS (
            SELECT FROM alive_workers
            WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s AND NOT draining)
        AND (w.session_id IS NULL
             OR h.incarnation = %(incarnation)s AND (h.session_id, h.epoch) IN (SELECT session_id, epoch FROM held)),
        false) AS locked
    FROM unnest(%(item_instance)s, %(item_execution)s, %(item_activity)s, %(item_name)s, %(item_session)s,
                %(item_payload)s, %(item_delay)s, %(item_here)s, %(item_claim)s)
         WITH ORDINALITY AS w (instance_id, execution_id, activity_id, name, session_id, payload, delay, here, claim,
                               ord)
    LEFT JOIN held_sessions h ON h.session_id = w.session_id
-- anywhere]
), items_added AS (
    INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload,
        lock_worker, lock_incarnation, lock_token, locked_until, attempts, enqueued_at)
    -- [here
    SELECT instance_id, execution_id, activity_id, name, session_id,
        CASE WHEN session_id IS NULL THEN 'free' ELSE %(route)s END,
        (SELECT clock()) + ord * interval '1 us', payload,
        %(worker)s, %(incarnation)s, %(token)s || '.' || ord, clock() + %(item_lock)s * interval '1 s', 1, clock()
    FROM unnest(%(item_instance)s, %(item_execution)s, %(item_activity)s, %(item_name)s, %(item_session)s,
                %(item_payload)s)
         WITH ORDINALITY AS w (instance_id, execution_id, activity_id, name, session_id, payload, ord)
    -- here]
    -- [anywhere
    SELECT instance_id, execution_id, activity_id, name, session_id,
        CASE WHEN session_id IS NULL THEN 'free' WHEN holder IS NOT NULL THEN 'w:' || holder
             WHEN claim AND delay <= 0 THEN %(offer)s ELSE 'new' END,
        (SELECT clock()) + delay * interval '1 s' + ord * interval '1 us', payload,
        CASE WHEN locked THEN %(worker)s END, CASE WHEN locked THEN %(incarnation)s END,
        CASE WHEN locked THEN %(token)s || '.' || ord END,
        CASE WHEN locked THEN clock() + %(item_lock)s * interval '1 s' END, locked::int, clock()
    FROM placed
    -- anywhere]
)
-- [here
SELECT CASE WHEN (SELECT count(*) FROM advanced) = cardinality(%(instance)s)
             AND (SELECT count(*) FROM removed) = cardinality(%(ack_token)s)
             -- All of them, as a rule, in the same order; and the results may have been of others.
             AND (sessions = %(here)s OR sessions @> %(here)s)
             AND EXISTS (
                 SELECT FROM alive_workers
                 WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s AND NOT draining)
            THEN NULL ELSE refuse() END,
    sessions, epochs
FROM (SELECT ARRAY (SELECT session_id FROM held) AS sessions, ARRAY (SELECT epoch FROM held) AS epochs OFFSET 0) h
-- here]
-- [anywhere
SELECT 'turns', CASE WHEN (SELECT count(*) FROM advanced) = cardinality(%(instance)s)
                      AND (SELECT count(*) FROM removed) = cardinality(%(ack_token)s)
                      AND EXISTS (
                          SELECT FROM alive_workers WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s)
                     THEN NULL ELSE refuse() END,
    NULL::bigint, NULL::text, array_fill(true, ARRAY[cardinality(%(instance)s)])
UNION ALL SELECT 'here', ord, epoch, NULL, NULL FROM placed WHERE locked
UNION ALL SELECT 'there', ord, NULL, holder, NULL FROM placed WHERE holder IS NOT NULL AND NOT locked
-- anywhere]
