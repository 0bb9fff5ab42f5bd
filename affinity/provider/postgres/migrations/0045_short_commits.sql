-- One plain turn that takes one result and queues one item of the same session, or also without one, to be run here: the
-- batch of a worker that has little to do. Its time is what starts statements, and arrays of one element make that half
-- as much again.

-- Commits such a turn as `commit_plain_turns_1` does, or raises `refuse`: also when the item is not to be locked to the
-- caller, since that is for the other function. Returns the epoch of the session.
CREATE FUNCTION commit_fused_turn_1(
    _worker text, _incarnation text, _token text,
    _item_lock float8, _session_lock float8, _touch_below float8,
    _instance text, _birth text, _execution bigint, _events bigint, _event text[],
    _ack_activity bigint, _ack_token text,
    _item_activity bigint, _item_name text, _item_session text, _item_payload text
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    held_epoch bigint;
    held_until timestamptz;
    moment timestamptz;
BEGIN
    UPDATE instances i
    SET event_count = i.event_count + cardinality(_event), claims = 0, unknown_since = NULL, updated_at = clock()
    WHERE i.instance_id = _instance AND i.birth = _birth
      AND i.owner_worker = _worker AND i.owner_incarnation = _incarnation AND i.status IN ('pending', 'running')
      AND i.execution_id = _execution AND i.event_count = _events;
    IF NOT FOUND THEN
        PERFORM refuse();
    END IF;
    moment := clock();
    INSERT INTO history (instance_id, execution_id, event_id, event, recorded_at, recorded_events, recorded_by)
    SELECT _instance, _execution, _events + e.k, e.event,
        CASE WHEN e.k = 1 THEN moment END,
        CASE WHEN e.k = 1 THEN cardinality(_event) END,
        CASE WHEN e.k = 1 THEN _worker END
    FROM (SELECT generate_series(1, cardinality(_event)) AS k, unnest(_event) AS event) e;

    DELETE FROM worker_queue q
    WHERE q.instance_id = _instance AND q.execution_id = _execution AND q.activity_id = _ack_activity
      AND q.lock_token = _ack_token AND q.locked_until > clock() AND q.session_id IS NOT DISTINCT FROM _item_session;
    IF NOT FOUND THEN
        PERFORM refuse();
    END IF;
    -- A session that the caller holds, and holds until the commit. With a planned move, its next work is for the other worker.
    IF _item_session IS NOT NULL THEN
        SELECT s.epoch, s.locked_until INTO held_epoch, held_until FROM sessions s
        WHERE s.session_id = _item_session
          AND (s.worker_id = _worker) IS TRUE AND s.incarnation = _incarnation AND s.locked_until > clock()
          AND (s.next_worker IS NULL OR s.next_until <= clock())
        FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            PERFORM refuse();
        END IF;
    END IF;
    PERFORM FROM alive_workers w WHERE w.worker_id = _worker AND w.incarnation = _incarnation AND NOT w.draining;
    IF NOT FOUND THEN
        PERFORM refuse();
    END IF;
    moment := clock();
    IF held_until < moment + _touch_below * interval '1 s' THEN
        UPDATE sessions s SET locked_until = moment + _session_lock * interval '1 s', touched_at = moment
        WHERE s.session_id = _item_session;
    END IF;

    INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload,
        lock_worker, lock_incarnation, lock_token, locked_until, attempts, enqueued_at)
    VALUES (_instance, _execution, _item_activity, _item_name, _item_session,
        CASE WHEN _item_session IS NULL THEN 'free' ELSE 'w:' || _worker END, moment, _item_payload,
        _worker, _incarnation, _token, moment + _item_lock * interval '1 s', 1, moment);
    RETURN held_epoch;
END $$;

-- Removes messages that turns have consumed. Called behind a commit: an argument of `commit_turns_3` for them brings all that
-- a turn may remove, and most turns that consume messages remove nothing else.
CREATE FUNCTION consume_messages_1(_instance text[], _id bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM orchestrator_queue o USING unnest(_instance, _id) AS c (instance_id, id)
    WHERE o.id = c.id AND o.instance_id = c.instance_id;
END $$;
