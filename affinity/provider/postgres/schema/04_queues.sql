-- Messages for instances, and work items for workers.

-- Rows of the queues live for milliseconds: vacuum them by number, not by share of a table that is mostly empty.
CREATE TABLE orchestrator_queue (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    instance_id text COLLATE "C" NOT NULL,
    route text COLLATE "C" NOT NULL,
    visible_at timestamptz NOT NULL,
    payload text NOT NULL,
    timer_execution bigint,
    timer_id integer
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX orchestrator_queue_route ON orchestrator_queue (route, visible_at);
-- With the timer, so that one of a thousand timers of an instance is found directly.
CREATE INDEX orchestrator_queue_instance ON orchestrator_queue (instance_id, timer_execution, timer_id);
CREATE TRIGGER orchestrator_queue_gate BEFORE INSERT ON orchestrator_queue FOR EACH ROW
WHEN (NEW.route = 'gated') EXECUTE FUNCTION check_gate();

-- route: 'w:W' of the holder W of its session, 'new:W' of a worker W to which the session moves, 'new' of a session without a
-- holder, 'free' without a session; 'new#TAG' and 'free#TAG' with a tag, which only workers with the tag read, so each fetch
-- reads one range of the index for each tag; 'blocked' behind another item in its session's order; 'gate' and 'gated' at its gate.
CREATE TABLE worker_queue (
    instance_id text COLLATE "C" NOT NULL,
    execution_id bigint NOT NULL,
    activity_id integer NOT NULL,
    name text COLLATE "C" NOT NULL,
    session_id text COLLATE "C",
    route text COLLATE "C" NOT NULL,
    visible_at timestamptz NOT NULL,
    payload text NOT NULL,
    lock_worker text COLLATE "C",
    lock_incarnation text COLLATE "C",
    lock_token text COLLATE "C",
    locked_until timestamptz,
    locked_at timestamptz, -- by the last fetch; NULL: when it was queued, or not yet
    attempts integer NOT NULL DEFAULT 0,
    failures integer NOT NULL DEFAULT 0,
    last_error text, -- of the failure before, for people
    failed_at timestamptz, -- time of the last of `failures`
    unknown_since timestamptz,
    -- The name that a worker must register, beside the item's own, to fetch an item that was given back as unknown.
    needs text COLLATE "C",
    enqueued_at timestamptz NOT NULL,
    -- The session in whose order an item stands, and its place there; NULL: it is not ordered. Only the first one has its
    -- session in session_id, and a route that fetches read. The items behind it are `blocked`, and have no session_id, so
    -- that no statement which looks for the items of a session finds them.
    order_session text COLLATE "C",
    order_number bigint,
    tag text COLLATE "C",
    -- Seconds that it waits for a slot of the holder of its session before another worker may take the session over, and
    -- before it fails; since when it waits, and when that has to be checked. NULL: as long as it takes.
    takeover_after float8,
    fail_after float8,
    waits_since timestamptz,
    attend_at timestamptz,
    -- The gate at which it waits, until a guest admits it: on the route 'gate' when it has come, or come back, and on 'gated' once
    -- that guest has seen it. limited: the gate has limits; then the item keeps its place there from its admission until it
    -- is removed or comes back, and while it waits it has its session in gate_session, and not in session_id. Otherwise the
    -- item begins on its route, and waits only when it comes back.
    gate text COLLATE "C",
    limited boolean,
    gate_session text COLLATE "C",
    passed_over float8, -- seconds that it had its places and no worker took it, with the pauses since; NULL: not so
    PRIMARY KEY (instance_id, execution_id, activity_id)
) WITH (fillfactor = 60, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX worker_queue_route ON worker_queue (route, visible_at);
CREATE INDEX worker_queue_session ON worker_queue (session_id, route) WHERE session_id IS NOT NULL;
CREATE INDEX worker_queue_order ON worker_queue (order_session, order_number) WHERE order_session IS NOT NULL;
-- An update that changes `failures` or `gate_session` changes the route or `visible_at` too.
CREATE INDEX worker_queue_failed ON worker_queue (visible_at) WHERE failures > 0;
CREATE INDEX worker_queue_limited ON worker_queue (gate_session) WHERE gate_session IS NOT NULL;
CREATE INDEX worker_queue_attend ON worker_queue (attend_at) WHERE attend_at IS NOT NULL;

-- Work items that are parked until a guest queues them: see `NewWorkItem.parked`. In a table of their own, so no statement on
-- the queue reads them. One row for an instance, written again and again in place. parked: it waits; false: it was queued, or
-- cancelled. A row counts for the generation and the execution that it names, and for no other one of its instance. A transaction
-- that changes `parked` of a live execution has locked the guest's row of the instance. So no work is pending while an item is
-- parked.
CREATE TABLE parked_items (
    instance_id text COLLATE "C" PRIMARY KEY,
    generation text COLLATE "C" NOT NULL,
    execution_id bigint NOT NULL,
    activity_id integer NOT NULL,
    name text COLLATE "C" NOT NULL,
    session_id text COLLATE "C",
    payload text NOT NULL,
    parked boolean NOT NULL,
    gate text COLLATE "C",
    limited boolean
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);

-- Whether a worker is alive now. A statement that locks a row which has changed since the statement began sees the new worker
-- there, and the table of workers as it was. So it asks again where that does not have the worker.
CREATE FUNCTION is_alive(_worker text, _incarnation text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM alive_workers w WHERE w.worker_id = _worker AND w.incarnation = _incarnation);
END $$;

-- Visible, and not locked by a live worker. The first condition reads the time once, so that an index serves it. An item with a
-- limited gate is delivered once for each admission.
CREATE VIEW deliverable_items AS
SELECT q.* FROM worker_queue q
WHERE q.visible_at <= (SELECT clock())
  AND (q.lock_token IS NULL OR q.limited IS NOT TRUE AND (q.locked_until <= clock() OR NOT EXISTS (
      SELECT FROM workers w
      WHERE w.worker_id = q.lock_worker AND w.incarnation = q.lock_incarnation AND w.locked_until > clock())
      AND NOT is_alive(q.lock_worker, q.lock_incarnation)));

-- How many workers the sessions need, for what starts and ends workers: one row. Work without a session is not counted,
-- nor is how much of it waits: more workers do not make one session faster. Sessions are counted by worker in one pass, before
-- their workers are looked up.
CREATE VIEW desired_workers AS
SELECT d.held, d.waiting, d.capacity::float8, ceil((d.held + d.waiting) / d.capacity)::integer AS desired
FROM (
    SELECT (
        SELECT coalesce(sum(h.sessions), 0)::bigint FROM (
            SELECT s.worker_id, s.incarnation, count(*) AS sessions
            FROM sessions s WHERE s.locked_until > (SELECT clock())
            GROUP BY s.worker_id, s.incarnation
        ) h JOIN workers w ON w.worker_id = h.worker_id AND w.incarnation = h.incarnation
        WHERE w.locked_until > clock()
    ) AS held, (
        -- Sessions with work, and without a holder. The routes are those of any worker, with and without an offer, and
        -- of workers that died: without workers, no sweep changes them.
        SELECT count(DISTINCT q.session_id)
        FROM (
            SELECT session_id, visible_at FROM worker_queue WHERE route >= 'new' AND route < 'new;'
            UNION ALL
            SELECT q.session_id, q.visible_at
            FROM workers w JOIN worker_queue q ON q.route = 'w:' || w.worker_id
            WHERE w.locked_until <= clock()
        ) q
        WHERE q.visible_at <= (SELECT clock())
          AND NOT EXISTS (SELECT FROM held_sessions h WHERE h.session_id = q.session_id)
    ) AS waiting, coalesce(
        -- The mean of workers that take sessions now; else of workers that did last; else the option's default.
        (SELECT avg(w.capacity) FROM workers w WHERE w.capacity > 0 AND w.locked_until > clock() AND NOT w.draining),
        (SELECT avg(w.capacity) FROM workers w WHERE w.capacity > 0),
        100
    ) AS capacity
) d;

-- Adds the tag to a route that any worker would read, and to an offer to a worker without the tag. A session's own tag
-- decides, once work has given it one: also for an item without a tag, and for one with another tag, which the holder
-- refuses. A trigger, so that it holds for every statement.
CREATE FUNCTION tag_route() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    _tag text := NEW.tag;
    _begun boolean;
BEGIN
    IF NEW.session_id IS NOT NULL THEN
        SELECT s.tag, true INTO _tag, _begun FROM sessions s WHERE s.session_id = NEW.session_id AND s.worker_id <> '';
        IF _begun IS NULL THEN
            _tag := NEW.tag;
        END IF;
    END IF;
    -- An offer, or a planned move, to a worker with the tag stands.
    IF _tag IS NOT NULL AND NOT (
        NEW.route > 'new:' AND EXISTS (
            SELECT FROM workers w WHERE w.worker_id = substr(NEW.route, 5) AND w.tags && ARRAY[_tag, 'any']))
    THEN
        NEW.route := CASE WHEN NEW.session_id IS NULL THEN 'free#' ELSE 'new#' END || _tag;
        IF TG_OP = 'UPDATE' AND NEW IS NOT DISTINCT FROM OLD THEN
            RETURN NULL;  -- no change: it is not counted as one
        END IF;
    END IF;
    RETURN NEW;
END $$;

-- An item is queued without a tag (`restrict_items` adds it), possibly of a session that has one.
CREATE TRIGGER worker_queue_tag_new BEFORE INSERT ON worker_queue FOR EACH ROW
WHEN (starts_with(NEW.route, 'new')) EXECUTE FUNCTION tag_route();
CREATE TRIGGER worker_queue_tag BEFORE UPDATE OF route, tag ON worker_queue FOR EACH ROW
WHEN (NEW.route = 'new' OR NEW.route = 'free' AND NEW.tag IS NOT NULL) EXECUTE FUNCTION tag_route();

-- A row for each session with an order, which transactions that add to the order lock. A row, and no advisory lock: each role of
-- the database can take that, and all turns of a batch would wait for it.
CREATE TABLE session_orders (
    session_id text COLLATE "C" PRIMARY KEY
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);

-- Ordered work items of a session run one after the other, in the order in which they were committed.
-- Locks the orders of sessions, until the end of the transaction, for one that adds to them; NULLs are skipped. Between
-- `instances` and `worker_queue` in the order of locks.
--
-- The lock on the order is for transactions that add. The lock on the last item is for transactions that remove: one that removes
-- the last item waits for us, and then sees the items that we have added behind it; if it is being removed, we wait and look
-- again. A transaction that removes another item sees the last one.
CREATE FUNCTION lock_order(_session text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    wanted text[] := ARRAY (SELECT DISTINCT s.id FROM unnest(_session) AS s (id) WHERE s.id IS NOT NULL ORDER BY s.id);
    lasts bigint;
    locked bigint;
BEGIN
    PERFORM FROM session_orders o WHERE o.session_id = ANY (wanted) ORDER BY o.session_id FOR NO KEY UPDATE;
    GET DIAGNOSTICS locked = ROW_COUNT;
    IF locked < cardinality(wanted) THEN
        INSERT INTO session_orders AS o (session_id) SELECT w.id FROM unnest(wanted) AS w (id) ORDER BY w.id
        ON CONFLICT (session_id) DO UPDATE SET session_id = excluded.session_id; -- it locks a row that is there by now
    END IF;
    LOOP
        WITH tail AS MATERIALIZED (
            SELECT s.id, (
                SELECT q.order_number FROM worker_queue q WHERE q.order_session = s.id
                ORDER BY q.order_number DESC LIMIT 1) AS number
            FROM unnest(wanted) AS s (id)
        ), item AS MATERIALIZED (
            SELECT FROM tail t JOIN worker_queue q ON q.order_session = t.id AND q.order_number = t.number
            ORDER BY q.instance_id, q.execution_id, q.activity_id FOR KEY SHARE OF q
        )
        SELECT (SELECT count(number) FROM tail), (SELECT count(*) FROM item) INTO lasts, locked;
        EXIT WHEN locked = lasts;
    END LOOP;
END $$;

-- Where new items stand in the orders of their sessions, which are locked: by element, the number, and whether another item
-- is before it. An element that is NULL has no number, and none is before it.
CREATE FUNCTION places_in_order(_session text[], OUT numbers bigint[], OUT blocked boolean[]) LANGUAGE plpgsql AS $$
BEGIN
    SELECT array_agg(p.number ORDER BY p.k), array_agg((p.number > 1) IS TRUE ORDER BY p.k) INTO numbers, blocked
    FROM (
        SELECT s.k, CASE WHEN s.id IS NOT NULL THEN row_number() OVER (PARTITION BY s.id ORDER BY s.k) + coalesce((
            SELECT q.order_number FROM worker_queue q WHERE q.order_session = s.id
            ORDER BY q.order_number DESC LIMIT 1), 0) END AS number
        FROM unnest(_session) WITH ORDINALITY AS s (id, k)) p;
END $$;

-- Puts the next item of an order into the queue when the first one is removed. The condition of the trigger is short, and the
-- function checks the rest: each statement that writes a row of the table compiles the condition again.
CREATE FUNCTION promote_next() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    following worker_queue;
BEGIN
    IF OLD.route = 'blocked' THEN
        RETURN NULL;
    END IF;
    LOOP
        SELECT q.* INTO following FROM worker_queue q WHERE q.order_session = OLD.order_session
        ORDER BY q.order_number LIMIT 1;
        EXIT WHEN NOT FOUND OR following.route <> 'blocked';
        UPDATE worker_queue q
        SET session_id = CASE WHEN q.limited IS NOT TRUE THEN q.order_session END,
            route = CASE WHEN q.limited THEN 'gate' ELSE coalesce(
                (SELECT r.route FROM session_routes r WHERE r.session_id = OLD.order_session), 'new') END
        WHERE q.instance_id = following.instance_id AND q.execution_id = following.execution_id
          AND q.activity_id = following.activity_id;
        EXIT WHEN FOUND;
    END LOOP;
    RETURN NULL;
END $$;

CREATE TRIGGER worker_queue_order AFTER DELETE ON worker_queue FOR EACH ROW
WHEN (OLD.order_session IS NOT NULL) EXECUTE FUNCTION promote_next();

-- Restricts items that the same transaction has queued. A function, so that a commit and a reset can do it in their own
-- statement, behind what they write: work without restrictions costs nothing more.
CREATE FUNCTION restrict_items(_instance text[], _execution bigint[], _activity bigint[], _tag text[],
    _takeover float8[], _fail float8[]) RETURNS void
LANGUAGE sql AS $$
    UPDATE worker_queue q
    SET tag = _tag[r.k], takeover_after = _takeover[r.k], fail_after = _fail[r.k],
        -- What is urgent is visible from an earlier time on.
        waits_since = coalesce(q.locked_until, greatest(q.visible_at, q.enqueued_at)),
        attend_at = CASE WHEN q.limited IS NOT TRUE OR q.route NOT IN ('gate', 'blocked') -- it has passed with its commit
            THEN coalesce(q.locked_until, greatest(q.visible_at, q.enqueued_at))
                + least(_takeover[r.k], _fail[r.k]) * interval '1 s' END
    FROM unnest(_instance) WITH ORDINALITY AS r (instance_id, k)
    WHERE q.instance_id = r.instance_id AND q.execution_id = _execution[r.k] AND q.activity_id = _activity[r.k]
$$;

-- Leaves items of sessions that were freed to any worker, up to a number of them: sweeps find the others.
CREATE FUNCTION free_items(_session text[], _most bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH others AS MATERIALIZED (
        SELECT q.instance_id, q.execution_id, q.activity_id
        FROM worker_queue q
        WHERE q.session_id = ANY (_session) AND q.route <> 'new'
        LIMIT _most FOR NO KEY UPDATE OF q SKIP LOCKED
    )
    UPDATE worker_queue q SET route = 'new' FROM others o
    WHERE q.instance_id = o.instance_id AND q.execution_id = o.execution_id AND q.activity_id = o.activity_id;
END $$;

-- Frees sessions whose holders are busy, for other workers that take their work and have room; returns the freed ones.
CREATE FUNCTION release_busy(_session text[], _reroute bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    freed text[];
BEGIN
    -- A claim, a fetch or a commit that has one of these rows is waited for, and is seen by what follows.
    PERFORM FROM sessions s WHERE s.session_id = ANY (_session) ORDER BY s.session_id FOR NO KEY UPDATE;
    freed := ARRAY(
        SELECT s.session_id FROM sessions s JOIN held_sessions h ON h.session_id = s.session_id
        WHERE s.session_id = ANY (_session) AND (s.next_worker IS NULL OR s.next_until <= clock())
          AND NOT EXISTS (
              SELECT FROM worker_queue q
              WHERE q.session_id = s.session_id AND q.lock_incarnation = s.incarnation AND q.locked_until > clock())
          AND EXISTS (
              SELECT FROM workers w
              WHERE w.worker_id <> s.worker_id AND w.locked_until > clock() AND NOT w.draining
                AND CASE WHEN s.tag IS NULL THEN NOT w.only_tagged ELSE w.tags && ARRAY[s.tag, 'any'] END
                AND w.capacity > (
                    SELECT count(*) FROM sessions x
                    WHERE x.worker_id = w.worker_id AND x.incarnation = w.incarnation AND x.locked_until > clock())));
    UPDATE sessions s SET locked_until = clock(), freed_by = 'holder_busy' WHERE s.session_id = ANY (freed);
    PERFORM free_items(freed, _reroute);
    RETURN freed;
END $$;

-- Frees idle sessions, for other workers, with the reason of the move that will follow; returns the freed ones.
CREATE FUNCTION release_sessions(_session text[], _reroute bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    idle text[];
    busy text[];
BEGIN
    -- A claim, a fetch or a commit that has one of these rows is waited for, and is seen by what follows.
    PERFORM FROM sessions s WHERE s.session_id = ANY (_session) ORDER BY s.session_id FOR NO KEY UPDATE;
    SELECT array_agg(h.session_id) FILTER (WHERE NOT h.is_busy), array_agg(h.session_id) FILTER (WHERE h.is_busy)
    INTO idle, busy
    FROM (
        SELECT h.session_id, EXISTS (
            SELECT FROM worker_queue q
            WHERE q.session_id = h.session_id AND q.lock_incarnation = h.incarnation AND q.locked_until > clock()
        ) AS is_busy
        FROM held_sessions h WHERE h.session_id = ANY (_session)
    ) h;
    UPDATE sessions s SET locked_until = clock(), freed_by = 'released' WHERE s.session_id = ANY (idle);
    PERFORM free_items(idle, _reroute);
    RETURN ARRAY(
        SELECT CASE WHEN n.session_id = ANY (idle) THEN 'released' WHEN n.session_id = ANY (busy) THEN 'busy'
               ELSE 'not_held' END
        FROM unnest(_session) WITH ORDINALITY AS n (session_id, k) ORDER BY n.k);
END $$;

-- Removes the work items of instances and ends their holds: locks of sessions are cut back to the latest hold that is left.
CREATE FUNCTION end_work(_instance text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    ended text[]; locks float8[]; -- sessions whose holds end, and the length of their locks without one
BEGIN
    PERFORM FROM worker_queue q WHERE q.instance_id = ANY (_instance)
    ORDER BY q.instance_id, q.execution_id, q.activity_id FOR UPDATE;
    DELETE FROM worker_queue WHERE instance_id = ANY (_instance);
    SELECT array_agg(h.session_id), array_agg(h.session_lock) INTO ended, locks
    FROM (
        SELECT session_id, max(session_lock) AS session_lock FROM session_holds WHERE instance_id = ANY (_instance)
        GROUP BY session_id) h;
    IF ended IS NOT NULL THEN
        PERFORM FROM sessions s WHERE s.session_id = ANY (ended) ORDER BY s.session_id FOR NO KEY UPDATE;
        DELETE FROM session_holds WHERE instance_id = ANY (_instance);
        UPDATE sessions s
        SET locked_until = least(
            s.locked_until, greatest(clock() + locks[e.k] * interval '1 s', latest_hold(s.session_id)))
        FROM unnest(ended) WITH ORDINALITY AS e (session_id, k) WHERE s.session_id = e.session_id;
    END IF;
END $$;

-- Keeps the row of a session that is watched, or has a tag and a record. A statement that removes rows looks for these with its
-- snapshot, which may be older than its lock on the row: it would miss what was committed in between. So this trigger looks again,
-- under the lock. It has its own search_path, so that it works in a deletion by an administrator too.
CREATE FUNCTION keep_session() RETURNS trigger LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM FROM session_watches w WHERE w.session_id = OLD.session_id
    UNION ALL
    SELECT FROM session_states r WHERE OLD.tag IS NOT NULL AND r.session_id = OLD.session_id;
    RETURN CASE WHEN NOT FOUND THEN OLD END;
END $$;

-- Sends the payload of each watch of a session that has moved: see `SessionWatch`.
CREATE FUNCTION notify_watchers() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
    SELECT r.instance_id, r.route, clock(), CASE
        WHEN w.payload LIKE '{%}' THEN left(w.payload, -1) || ',"move":' || json_build_object(
            'worker_id', NEW.worker_id, 'epoch', NEW.epoch, 'reason', (
                SELECT m.reason FROM session_moves m WHERE m.epoch = NEW.epoch)
            ) || '}'
        ELSE w.payload END
    FROM session_watches w JOIN message_routes r USING (instance_id)
    WHERE w.session_id = NEW.session_id;
    RETURN NULL;
END $$;

-- Triggers fire in the order of their names: `session_moved` reads what `session_claimed` has written.
CREATE TRIGGER session_moved AFTER UPDATE OF worker_id, incarnation ON sessions
FOR EACH ROW WHEN (OLD.worker_id <> '' AND (OLD.worker_id <> NEW.worker_id OR OLD.incarnation <> NEW.incarnation))
EXECUTE FUNCTION notify_watchers();
CREATE TRIGGER session_removed BEFORE DELETE ON sessions
FOR EACH ROW EXECUTE FUNCTION keep_session();

-- Activities that wait for an instance to end (target_id: NULL), or for data that a guest keeps under its id; target_id
-- and seq name the data to that guest. lock_token: of their work items; when the lock is over, so is the wait.
CREATE TABLE activity_waits (
    wait_id bigint PRIMARY KEY,
    instance_id text COLLATE "C" NOT NULL,
    execution_id bigint NOT NULL,
    activity_id integer NOT NULL,
    lock_token text COLLATE "C" NOT NULL,
    awaited text COLLATE "C" NOT NULL,
    target_id bigint,
    seq bigint,
    began timestamptz NOT NULL
);
CREATE INDEX activity_waits_instance ON activity_waits (instance_id);

-- Whether the activity of a wait still runs.
CREATE FUNCTION activity_runs(w activity_waits) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM worker_queue q
        WHERE q.instance_id = w.instance_id AND q.execution_id = w.execution_id AND q.activity_id = w.activity_id
          AND q.lock_token = w.lock_token AND q.locked_until > clock())
$$;
