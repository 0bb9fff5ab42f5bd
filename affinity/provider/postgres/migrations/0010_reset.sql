-- Opens an instance again at an earlier point of its history: see `Reset` in contract.py.
CREATE FUNCTION reset_instance_1(
    _instance text, _birth text, _execution bigint, _events bigint, _keep bigint, _event text[], _custom_status text,
    _message_instance text[], _message_birth text[], _message text[], _message_delay float8[], _message_timer bigint[],
    _item_activity bigint[], _item_name text[], _item_session text[], _item_payload text[],
    _watch_session text[], _watch text[]
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    UPDATE instances i
    SET execution_id = _execution + 1, event_count = _keep + cardinality(_event), status = 'running', output = NULL,
        error = NULL, custom_status = coalesce(_custom_status, i.custom_status), owner_incarnation = NULL, claims = 0,
        unknown_since = NULL, unread = 0, updated_at = clock()
    WHERE i.instance_id = _instance AND i.birth = _birth AND i.execution_id = _execution AND i.event_count = _events;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM end_work_1(ARRAY[_instance]);
    INSERT INTO history (instance_id, execution_id, event_id, event)
    SELECT h.instance_id, _execution + 1, h.event_id, h.event FROM history h
    WHERE h.instance_id = _instance AND h.execution_id = _execution AND h.event_id <= _keep
    UNION ALL
    SELECT _instance, _execution + 1, _keep + e.k, e.event FROM unnest(_event) WITH ORDINALITY AS e (event, k);
    -- Before all that waits, also by an earlier reset, but for timers: one that still waits keeps its time.
    INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload, timer_execution, timer_id)
    SELECT m.instance_id, r.route,
        CASE WHEN _message_timer[m.k] IS NOT NULL
             THEN coalesce(o.visible_at, (SELECT clock()) + _message_delay[m.k] * interval '1 s')
             WHEN m.instance_id = _instance THEN least(to_timestamp(0), (
                 SELECT min(w.visible_at) - interval '1 s' FROM orchestrator_queue w WHERE w.instance_id = _instance))
             ELSE (SELECT clock()) END,
        _message[m.k], CASE WHEN _message_timer[m.k] IS NOT NULL THEN _execution + 1 END, _message_timer[m.k]
    FROM unnest(_message_instance) WITH ORDINALITY AS m (instance_id, k) JOIN message_routes r USING (instance_id)
    LEFT JOIN orchestrator_queue o
        ON o.instance_id = _instance AND o.timer_execution = _execution AND o.timer_id = _message_timer[m.k]
    WHERE _message_birth[m.k] IS NULL OR r.birth = _message_birth[m.k]
    ORDER BY m.k;
    DELETE FROM orchestrator_queue WHERE instance_id = _instance AND timer_execution = _execution;
    UPDATE orchestrator_queue SET route = 'new' WHERE instance_id = _instance AND route <> 'new';
    INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload,
        enqueued_at)
    SELECT _instance, _execution + 1, _item_activity[w.k], _item_name[w.k], w.session_id,
        CASE WHEN w.session_id IS NULL THEN 'free' ELSE coalesce('w:' || h.worker_id, 'new') END,
        (SELECT clock()) + w.k * interval '1 us', _item_payload[w.k], clock()
    FROM unnest(_item_session) WITH ORDINALITY AS w (session_id, k)
    LEFT JOIN held_sessions h ON h.session_id = w.session_id;
    INSERT INTO session_watches (session_id, instance_id, payload)
    SELECT w.session_id, _instance, _watch[w.k] FROM unnest(_watch_session) WITH ORDINALITY AS w (session_id, k)
    ON CONFLICT (session_id, instance_id) DO UPDATE SET payload = excluded.payload;
    UPDATE suspensions SET resumed_at = clock(), tried = '{}', unchecked = true WHERE instance_id = _instance;
    RETURN true;
END $$;
