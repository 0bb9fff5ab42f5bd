-- Plain turns: they take results and queue work that their worker is to run, and do nothing else. Nearly all batches hold
-- only such turns, and what a commit of few turns costs is to start its statements and to receive its arguments.

-- Commits a batch of plain turns, all of them or none: as `commit_turns_3`, without what such a batch has no use for.
--
-- An INSERT reads the time beforehand: with a volatile function among its columns it would be started as two plans.
CREATE FUNCTION commit_plain_turns_1(
    _worker text, _incarnation text, _token text,
    _item_lock float8, _session_lock float8, _touch_below float8,
    _instance text[], _birth text[], _execution bigint[], _events bigint[], _added bigint[],
    _event_turn bigint[], _event_id bigint[], _event text[],
    _ack_instance text[], _ack_execution bigint[], _ack_activity bigint[], _ack_token text[],
    _item_turn bigint[], _item_activity bigint[], _item_name text[], _item_session text[], _item_payload text[],
    _here text[]
) RETURNS committed LANGUAGE plpgsql AS $$
DECLARE
    held text[]; epochs bigint[]; locked boolean[]; holders text[]; routes text[];
    acked text[];         -- sessions of results
    earliest timestamptz; -- end of a lock on what is held
    may_lock boolean;     -- false: draining; NULL: the worker's lease has ended
    passed bigint;
    moment timestamptz;
BEGIN
    UPDATE instances i
    SET event_count = i.event_count + _added[t.n], claims = 0, unknown_since = NULL, updated_at = clock()
    FROM unnest(_instance) WITH ORDINALITY AS t (instance_id, n)
    WHERE i.instance_id = t.instance_id AND i.birth = _birth[t.n]
      AND i.owner_worker = _worker AND i.owner_incarnation = _incarnation AND i.status IN ('pending', 'running')
      AND i.execution_id = _execution[t.n] AND i.event_count = _events[t.n];
    GET DIAGNOSTICS passed = ROW_COUNT;
    IF passed < cardinality(_instance) THEN
        PERFORM refuse();
    END IF;
    moment := clock();
    INSERT INTO history (instance_id, execution_id, event_id, event, recorded_at, recorded_events, recorded_by)
    SELECT _instance[e.n], _execution[e.n], _event_id[e.k], _event[e.k],
        CASE WHEN _event_id[e.k] = _events[e.n] + 1 THEN moment END,
        CASE WHEN _event_id[e.k] = _events[e.n] + 1 THEN _added[e.n] END,
        CASE WHEN _event_id[e.k] = _events[e.n] + 1 THEN _worker END
    FROM unnest(_event_turn) WITH ORDINALITY AS e (n, k);

    WITH removed AS (
        DELETE FROM worker_queue q
        USING unnest(_ack_instance) WITH ORDINALITY AS a (instance_id, k)
        WHERE q.instance_id = a.instance_id AND q.execution_id = _ack_execution[a.k]
          AND q.activity_id = _ack_activity[a.k] AND q.lock_token = _ack_token[a.k] AND q.locked_until > clock()
        RETURNING q.session_id
    )
    SELECT count(*), array_agg(r.session_id) INTO passed, acked FROM removed r;
    -- Sessions that the caller holds, and holds until the commit.
    SELECT array_agg(h.session_id), array_agg(h.epoch), min(h.locked_until), (
            SELECT NOT w.draining FROM alive_workers w
            WHERE w.worker_id = _worker AND w.incarnation = _incarnation)
    INTO held, epochs, earliest, may_lock
    FROM (
        SELECT s.session_id, s.epoch, s.locked_until FROM sessions s
        WHERE s.session_id = ANY (acked || _here)
          AND (s.worker_id = _worker) IS TRUE AND s.incarnation = _incarnation AND s.locked_until > clock()
          -- With a planned move, its next work is for the other worker.
          AND (s.next_worker IS NULL OR s.next_until <= clock())
        ORDER BY s.session_id FOR NO KEY UPDATE) h;
    IF passed < cardinality(_ack_token) OR may_lock IS NULL THEN
        PERFORM refuse();
    END IF;
    moment := clock();
    IF earliest < moment + _touch_below * interval '1 s' THEN
        UPDATE sessions s SET locked_until = moment + _session_lock * interval '1 s', touched_at = moment
        WHERE s.session_id = ANY (held) AND s.locked_until < moment + _touch_below * interval '1 s';
    END IF;

    -- New work: locked to the caller where that is right, else left to the holder of its session. Items of one batch are
    -- a microsecond apart, so that they are delivered in their order.
    IF may_lock AND (held = _here OR held @> _here OR _here = '{}') THEN
        INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload,
            lock_worker, lock_incarnation, lock_token, locked_until, attempts, enqueued_at)
        SELECT _instance[w.n], _execution[w.n], _item_activity[w.k], _item_name[w.k], _item_session[w.k],
            CASE WHEN _item_session[w.k] IS NULL THEN 'free' ELSE 'w:' || _worker END,
            moment + w.k * interval '1 us', _item_payload[w.k],
            _worker, _incarnation, _token || '.' || w.k, moment + _item_lock * interval '1 s', 1, moment
        FROM unnest(_item_turn) WITH ORDINALITY AS w (n, k);
    ELSE
        SELECT array_agg(p.locked ORDER BY p.k), array_agg(p.holder ORDER BY p.k), array_agg(p.route ORDER BY p.k)
        INTO locked, holders, routes
        FROM (
            SELECT w.k, coalesce(m.next_worker, h.worker_id) AS holder, coalesce(m.route, 'w:' || h.worker_id) AS route,
                -- With the epoch as it is, or not at all: a writer without a lease gives the session another.
                may_lock AND (w.session_id IS NULL OR (h.session_id = ANY (held)) IS TRUE) AS locked
            FROM unnest(_item_session) WITH ORDINALITY AS w (session_id, k)
            LEFT JOIN held_sessions h ON h.session_id = w.session_id
            LEFT JOIN planned_moves m ON m.session_id = h.session_id) p;
        INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload,
            lock_worker, lock_incarnation, lock_token, locked_until, attempts, enqueued_at)
        SELECT _instance[w.n], _execution[w.n], _item_activity[w.k], _item_name[w.k], _item_session[w.k],
            CASE WHEN _item_session[w.k] IS NULL THEN 'free' ELSE coalesce(routes[w.k], 'new') END,
            moment + w.k * interval '1 us', _item_payload[w.k],
            CASE WHEN locked[w.k] THEN _worker END, CASE WHEN locked[w.k] THEN _incarnation END,
            CASE WHEN locked[w.k] THEN _token || '.' || w.k END,
            CASE WHEN locked[w.k] THEN moment + _item_lock * interval '1 s' END, locked[w.k]::int, moment
        FROM unnest(_item_turn) WITH ORDINALITY AS w (n, k);
    END IF;
    RETURN (held, epochs, locked, holders);
END $$;

-- The condition of a trigger is read and compiled anew by each statement that writes a row of its table: the shorter it is,
-- the less such a statement costs. The functions ask for the rest.
CREATE OR REPLACE FUNCTION promote_next() RETURNS trigger LANGUAGE plpgsql AS $$
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
        SET session_id = q.order_session, route = coalesce(
            (SELECT coalesce(m.route, 'w:' || h.worker_id)
             FROM held_sessions h LEFT JOIN planned_moves m ON m.session_id = h.session_id
             WHERE h.session_id = OLD.order_session), 'new')
        WHERE q.instance_id = following.instance_id AND q.execution_id = following.execution_id
          AND q.activity_id = following.activity_id;
        EXIT WHEN FOUND;
    END LOOP;
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER worker_queue_order AFTER DELETE ON worker_queue FOR EACH ROW
WHEN (OLD.order_session IS NOT NULL) EXECUTE FUNCTION promote_next();

CREATE OR REPLACE TRIGGER worker_queue_tag_new BEFORE INSERT ON worker_queue FOR EACH ROW
WHEN (starts_with(NEW.route, 'new')) EXECUTE FUNCTION tag_route();
