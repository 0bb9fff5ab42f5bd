-- commit: commits turns, each whole or not at all
-- n is the turn's number in the batch, ord an element's number in its column. IS TRUE: see work_items.sql.
-- Locks are taken in the order that all verbs keep: instances, worker_queue, sessions, each by key. What is written
-- after that is filtered by one flag a turn: `(SELECT flags FROM ok)[n]` is read in constant time, where a join of the
-- batch's columns with the turns would be quadratic.
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
        SELECT f.n, q.instance_id, q.execution_id, q.activity_id, NULL, NULL
        FROM unnest(%(finish_turn)s, %(finish_instance)s) AS f (n, instance_id) JOIN worker_queue q USING (instance_id)
        -- rest]
    ) d JOIN worker_queue q USING (instance_id, execution_id, activity_id)
    WHERE (d.ord IS NULL OR q.lock_token = d.token AND q.locked_until > clock())
      AND (SELECT count(*) FROM fenced) >= 0 -- always true: it makes the instances come first
    ORDER BY q.instance_id, q.execution_id, q.activity_id FOR UPDATE OF q
), lost AS MATERIALIZED (
    SELECT a.n, a.ord FROM unnest(%(ack_turn)s) WITH ORDINALITY AS a (n, ord)
    WHERE a.ord NOT IN (SELECT ord FROM locked WHERE ord IS NOT NULL)
), ok AS MATERIALIZED (
    SELECT array_agg(
        t.n IN (SELECT n FROM fenced) AND t.n NOT IN (SELECT n FROM lost)
        AND EXISTS (SELECT FROM alive_workers WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s)
        ORDER BY t.n) AS flags
    FROM generate_series(1, cardinality(%(instance)s)) AS t (n)
), held AS MATERIALIZED (
    -- Sessions that we hold, and hold until we commit: those of results, and those that are asked to run here.
    SELECT s.session_id, s.locked_until FROM sessions s
    WHERE s.session_id = ANY (ARRAY (
            SELECT session_id FROM locked WHERE ord IS NOT NULL AND (SELECT flags FROM ok)[n]
            UNION
            SELECT session_id FROM unnest(%(item_turn)s, %(item_session)s, %(item_here)s) AS w (n, session_id, here)
            WHERE here AND (SELECT flags FROM ok)[n]))
      AND (s.worker_id = %(worker)s) IS TRUE AND s.incarnation = %(incarnation)s AND s.locked_until > clock()
    ORDER BY s.session_id FOR NO KEY UPDATE
), touched AS (
    UPDATE sessions s SET locked_until = clock() + %(session_lock)s * interval '1 s', touched_at = clock()
    FROM held WHERE s.session_id = held.session_id
      AND held.locked_until < clock() + %(touch_below)s * interval '1 s'
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
        AND (w.session_id IS NULL OR h.incarnation = %(incarnation)s AND h.session_id IN (SELECT session_id FROM held)),
        false) AS locked
    FROM unnest(%(item_turn)s, %(item_instance)s, %(item_execution)s, %(item_activity)s, %(item_name)s,
                %(item_session)s, %(item_payload)s, %(item_delay)s, %(item_here)s)
         WITH ORDINALITY AS w (n, instance_id, execution_id, activity_id, name, session_id, payload, delay, here, ord)
    LEFT JOIN held_sessions h ON h.session_id = w.session_id
    WHERE (SELECT flags FROM ok)[w.n]
), items_added AS (
    INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload,
        lock_worker, lock_incarnation, lock_token, locked_until, attempts, enqueued_at)
    SELECT instance_id, execution_id, activity_id, name, session_id,
        CASE WHEN session_id IS NULL THEN 'free' ELSE coalesce('w:' || holder, 'new') END,
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
    UPDATE instances i
    SET execution_id = i.execution_id + t.continued::int,
        event_count = CASE WHEN t.continued THEN 0 ELSE i.event_count + t.added END,
        status = coalesce(t.status, i.status), version = coalesce(t.version, i.version),
        custom_status = coalesce(t.custom_status, i.custom_status), output = coalesce(t.output, i.output),
        error = coalesce(t.error, i.error), claims = 0, unknown_since = NULL, updated_at = clock()
    FROM unnest(%(instance)s, %(added)s, %(status)s, %(version)s, %(custom_status)s, %(output)s, %(error)s,
                %(continued)s)
         WITH ORDINALITY AS t (instance_id, added, status, version, custom_status, output, error, continued, n)
    WHERE i.instance_id = t.instance_id AND (SELECT flags FROM ok)[t.n]
)
-- What the caller cannot know: turns that were committed, acks that were lost, items that were locked or have a holder.
SELECT 'turn', t.n::bigint, NULL::bigint, NULL::text
FROM generate_series(1, cardinality(%(instance)s)) AS t (n) WHERE (SELECT flags FROM ok)[t.n]
UNION ALL SELECT 'lost', ord, NULL, NULL FROM lost
UNION ALL SELECT 'here', ord, epoch, NULL FROM placed WHERE locked
UNION ALL SELECT 'there', ord, NULL, holder FROM placed WHERE holder IS NOT NULL AND NOT locked
