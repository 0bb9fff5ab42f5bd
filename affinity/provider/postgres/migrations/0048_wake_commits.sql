-- One turn that takes the result of one wake, with what that adds to its journal and with the state of its session: the batch
-- of a worker that has little to do with conversations. As `commit_fused_turn_1`, for the same reason.

-- Commits such a turn as `commit_turns_3` and `write_journals_1` do, or raises `refuse`: also when it is for those two, since the
-- state is of another session than the result, or of one without a row, or since the item may not sleep. The entries are of this
-- wake; none is an input, and none has an event id. An item asleep is of the instance whose journal this is.
CREATE FUNCTION commit_wake_1(
    _worker text, _incarnation text, _session_lock float8, _touch_below float8,
    _instance text, _birth text, _execution bigint, _events bigint, _event text[],
    _ack_activity bigint, _ack_token text,
    _session text, _journal bigint, _base bigint, _processed bigint, _wake text, _attempt bigint,
    _entry_kind text[], _entry text[], _size bigint, _clear boolean,
    _state_session text = NULL, _state_base bigint = NULL, _state_epoch bigint = NULL, _state bytea = NULL,
    _state_encoding text = NULL, _state_schema bigint = NULL, _state_kind text = NULL, _state_name text = NULL,
    _state_parent text = NULL, _state_labels text = NULL, _state_messages bigint = NULL,
    _state_participants text = NULL,
    _asleep_activity bigint = NULL, _asleep_name text = NULL, _asleep_session text = NULL, _asleep_payload text = NULL
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    acked text;             -- session of the result
    session_epoch bigint;
    held_until timestamptz; -- NULL: the caller does not hold it
    last bigint;            -- entry of the journal before those of the wake
    inherited bigint;       -- last entry that the journal has from another one
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
      AND q.lock_token = _ack_token AND q.locked_until > clock()
    RETURNING q.session_id INTO acked;
    IF NOT FOUND OR _state_session <> acked OR _state_session IS NOT NULL AND acked IS NULL THEN
        PERFORM refuse();
    END IF;
    IF acked IS NOT NULL THEN
        SELECT s.epoch,
            -- With a planned move, its next work is for the other worker.
            CASE WHEN (s.worker_id = _worker) IS TRUE AND s.incarnation = _incarnation AND s.locked_until > clock()
                  AND (s.next_worker IS NULL OR s.next_until <= clock()) THEN s.locked_until END
        INTO session_epoch, held_until
        FROM sessions s WHERE s.session_id = acked FOR NO KEY UPDATE;
    END IF;
    PERFORM FROM alive_workers w WHERE w.worker_id = _worker AND w.incarnation = _incarnation;
    IF NOT FOUND OR _state_session IS NOT NULL AND (session_epoch <= _state_epoch) IS NOT TRUE THEN
        PERFORM refuse();
    END IF;
    moment := clock();
    IF held_until < moment + _touch_below * interval '1 s' THEN
        UPDATE sessions s SET locked_until = moment + _session_lock * interval '1 s', touched_at = moment
        WHERE s.session_id = acked;
    END IF;

    IF _state_session IS NOT NULL THEN
        UPDATE session_states r
        SET state = _state, encoding = _state_encoding, schema_version = _state_schema, kind = _state_kind,
            name = _state_name, parent = _state_parent, labels = _state_labels::jsonb,
            message_count = _state_messages, participants = _state_participants::jsonb, version = r.version + 1,
            epoch = _state_epoch, turn = NULL, updated_at = clock()
        WHERE r.session_id = _state_session AND r.version = _state_base AND (r.epoch > _state_epoch) IS NOT TRUE;
        IF NOT FOUND THEN
            PERFORM refuse();
        END IF;
    END IF;

    UPDATE journals j
    SET processed = _processed, last_seq = j.last_seq + cardinality(_entry), size = j.size + _size,
        ended_wake = _wake, ended_attempt = CASE WHEN j.ended_wake = _wake
            THEN greatest(j.ended_attempt, _attempt) ELSE _attempt END,
        updated_at = clock()
    WHERE j.session_id = _session AND j.journal_id = _journal AND j.processed = _base
    RETURNING j.last_seq - cardinality(_entry), j.base_seq INTO last, inherited;
    IF NOT FOUND THEN
        PERFORM refuse();
    END IF;
    moment := clock();
    INSERT INTO journal_entries (journal_id, seq, recorded_at, is_input, kind, wake_id, payload)
    SELECT _journal, last + e.k, moment, false, e.kind, _wake, e.entry
    FROM (
        SELECT generate_series(1, cardinality(_entry)) AS k, unnest(_entry_kind) AS kind, unnest(_entry) AS entry) e;
    IF _clear THEN
        DELETE FROM journal_streams s WHERE s.journal_id = _journal;
    END IF;

    IF _asleep_activity IS NOT NULL THEN
        PERFORM FROM journal_entries e WHERE e.journal_id = _journal AND e.is_input AND e.seq > _processed LIMIT 1;
        IF FOUND OR _processed < inherited THEN
            PERFORM refuse();
        END IF;
        -- No other transaction adds the row of an instance that is locked.
        UPDATE asleep_items a
        SET birth = _birth, execution_id = _execution, activity_id = _asleep_activity, name = _asleep_name,
            session_id = _asleep_session, payload = _asleep_payload, asleep = true
        WHERE a.instance_id = _instance;
        IF NOT FOUND THEN
            INSERT INTO asleep_items (instance_id, birth, execution_id, activity_id, name, session_id, payload, asleep)
            VALUES (_instance, _birth, _execution, _asleep_activity, _asleep_name, _asleep_session, _asleep_payload,
                true);
        END IF;
    END IF;
END $$;
