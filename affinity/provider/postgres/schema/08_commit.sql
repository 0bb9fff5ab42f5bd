-- Turns: the commits of workers, each in one transaction.

-- The fence of a turn: the worker owns the instance, and the instance is at the point of its history that the worker knows.
CREATE FUNCTION passes_fence(i instances, _worker text, _incarnation text, _generation text, _execution bigint, _events bigint)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT i.owner_worker = _worker AND i.owner_incarnation = _incarnation AND i.status IN ('pending', 'running')
        AND i.generation = _generation AND i.execution_id = _execution AND i.event_count = _events
$$;

-- Which new items pass their gates immediately: by element; NULL, and in place of all: they wait. The guest that opens gates replaces it.
CREATE FUNCTION pass_gates(_instance text[], _execution bigint[], _activity bigint[], _gate text[]) RETURNS boolean[]
LANGUAGE plpgsql AS $$
BEGIN
    RETURN NULL;
END $$;

-- The answer of `commit_turns`. held, epochs: sessions of results and of new work that the caller holds, and their epochs.
-- locked, holders: by new item, whether it was locked to the caller, and which worker holds its session; NULL: all were locked.
-- It is a type, not OUT parameters: with these PostgreSQL would read the names of all parameters at every call.
CREATE TYPE committed AS (held text[], epochs bigint[], locked boolean[], holders text[]);

-- Commits a batch of turns, all of them or none. A column *_turn holds, by element, the number of the turn that it
-- belongs to, from 1. Columns that a batch has no use for are NULL; columns of one group are all there or none of them:
-- placement, updates, removals with children and messages, holds with watches, states.
--
-- Nearly all turns pass, so the fences are not read first. Each statement writes the rows whose fences pass, and counts them.
-- If one is missing, an error undoes everything (`refuse`). Then the caller asks which turns do not pass (`check_fences` in
-- turns.sql), and commits the others.
--
-- Rows are locked in the order that all verbs keep: instances, worker_queue, sessions, session_states, each by key.
-- Turns, acks and states come in the order of their keys. Each statement has a snapshot of its own: it sees the locked rows as
-- they are then, and the writes of the statements before it.
--
-- An INSERT reads the time beforehand: with a volatile function among its columns it would be started as two plans.
CREATE FUNCTION commit_turns(
    _worker text, _incarnation text, _token text,
    _item_lock float8, _session_lock float8, _touch_below float8,
    _instance text[], _generation text[], _execution bigint[], _events bigint[], _added bigint[],
    _event_turn bigint[], _event_id bigint[], _event text[],
    _ack_instance text[], _ack_execution bigint[], _ack_activity bigint[], _ack_token text[],
    -- New work, and the sessions of the items that the caller is to lock, each once, in order.
    _item_turn bigint[], _item_activity bigint[], _item_name text[], _item_session text[], _item_payload text[],
    _here text[],
    -- Placement. NULL: all items are visible immediately and to be locked by the caller.
    _item_here boolean[] = NULL, _item_claim boolean[] = NULL, _item_delay float8[] = NULL,
    -- Updates: changes of a turn to its instance, beside the history.
    _status text[] = NULL, _version text[] = NULL, _custom_status text[] = NULL, _output text[] = NULL,
    _error text[] = NULL, _continued boolean[] = NULL, _unread bigint[] = NULL,
    -- Removals, instances that finish, children and messages.
    _cancel_turn bigint[] = NULL, _cancel_activity bigint[] = NULL,
    _timer_turn bigint[] = NULL, _timer_id bigint[] = NULL, _finish text[] = NULL,
    _child_instance text[] = NULL, _child_generation text[] = NULL, _child_name text[] = NULL, _child_version text[] = NULL,
    _child_start text[] = NULL, _child_delay float8[] = NULL, _child_parent text[] = NULL,
    _child_on_exists text[] = NULL, _child_parent_generation text[] = NULL, _child_on_deleted text[] = NULL,
    _child_session text[] = NULL, _child_gate text[] = NULL, _child_limited boolean[] = NULL,
    _child_head_start float8[] = NULL, _child_not_before float8[] = NULL, _child_labels text[] = NULL,
    _message_instance text[] = NULL, _message_generation text[] = NULL, _message text[] = NULL,
    _message_delay float8[] = NULL, _message_execution bigint[] = NULL, _message_timer bigint[] = NULL,
    -- Holds and watches, and instances whose execution ends.
    _hold_turn bigint[] = NULL, _hold_id bigint[] = NULL, _hold_session text[] = NULL, _hold_seconds float8[] = NULL,
    _unhold_turn bigint[] = NULL, _unhold_id bigint[] = NULL, _end text[] = NULL,
    _watch_turn bigint[] = NULL, _watch_session text[] = NULL, _watch text[] = NULL,
    -- States of sessions.
    _state_session text[] = NULL, _state_base bigint[] = NULL, _state_epoch bigint[] = NULL, _state bytea[] = NULL,
    _state_encoding text[] = NULL, _state_schema bigint[] = NULL, _state_kind text[] = NULL, _state_name text[] = NULL,
    _state_parent text[] = NULL, _state_labels text[] = NULL, _state_messages bigint[] = NULL,
    _state_participants text[] = NULL,
    -- Runs of activities, by event.
    _run_worker text[] = NULL, _run_attempt bigint[] = NULL, _run_queued float8[] = NULL,
    -- Ordered items: their sessions, NULL for items that are not ordered. With placement.
    _item_order text[] = NULL,
    -- Gates. With placement.
    _item_gate text[] = NULL, _item_limited boolean[] = NULL, _item_head_start float8[] = NULL
) RETURNS committed LANGUAGE plpgsql AS $$
DECLARE
    held text[]; epochs bigint[]; locked boolean[]; holders text[]; routes text[];
    acked text[];         -- sessions of results
    ending text[];        -- sessions whose holds end
    earliest timestamptz; -- end of the first lock on a held session
    may_lock boolean;     -- false: draining; NULL: the worker's lease has ended
    numbers bigint[];     -- places of ordered items
    blocked boolean[];    -- whether another one is before them
    gated boolean[];      -- whether they wait at a limited gate
    passed bigint;
    added bigint;
    moment timestamptz;
BEGIN
    IF _status IS NULL THEN
        UPDATE instances i
        SET event_count = i.event_count + _added[t.n], claims = 0, unknown_since = NULL, updated_at = clock()
        FROM unnest(_instance) WITH ORDINALITY AS t (instance_id, n)
        WHERE i.instance_id = t.instance_id
          AND passes_fence(i, _worker, _incarnation, _generation[t.n], _execution[t.n], _events[t.n]);
    ELSE
        UPDATE instances i
        SET execution_id = i.execution_id + _continued[t.n]::int,
            event_count = CASE WHEN _continued[t.n] THEN 0 ELSE i.event_count + _added[t.n] END,
            status = coalesce(_status[t.n], i.status), version = coalesce(_version[t.n], i.version),
            custom_status = coalesce(_custom_status[t.n], i.custom_status), output = coalesce(_output[t.n], i.output),
            error = coalesce(_error[t.n], i.error), unread = coalesce(_unread[t.n], i.unread), claims = 0,
            unknown_since = NULL, updated_at = clock()
        FROM unnest(_instance) WITH ORDINALITY AS t (instance_id, n)
        WHERE i.instance_id = t.instance_id
          AND passes_fence(i, _worker, _incarnation, _generation[t.n], _execution[t.n], _events[t.n]);
    END IF;
    GET DIAGNOSTICS passed = ROW_COUNT;
    IF passed < cardinality(_instance) THEN
        PERFORM refuse();
    END IF;
    moment := clock();
    INSERT INTO history (instance_id, execution_id, event_id, event, recorded_at, recorded_events, recorded_by, run_by,
        attempt, queued_for)
    SELECT _instance[e.n], _execution[e.n], _event_id[e.k], _event[e.k],
        CASE WHEN _event_id[e.k] = _events[e.n] + 1 THEN moment END,
        CASE WHEN _event_id[e.k] = _events[e.n] + 1 THEN _added[e.n] END,
        CASE WHEN _event_id[e.k] = _events[e.n] + 1 THEN _worker END,
        _run_worker[e.k], _run_attempt[e.k], _run_queued[e.k]
    FROM unnest(_event_turn) WITH ORDINALITY AS e (n, k);

    IF _finish IS NOT NULL THEN
        -- Children are instances, so they come here in the order of locks, and before messages to them.
        IF _child_instance <> '{}' THEN
            PERFORM add_instances(_child_instance, _child_generation, _child_name, _child_version, _child_start,
                _child_parent, _child_parent_generation, _child_delay, _child_on_exists, _child_on_deleted, _child_session,
                _gate => _child_gate, _limited => _child_limited, _head_start => _child_head_start,
                _not_before => _child_not_before, _labels => _child_labels);
        END IF;
        -- Cancelled items and items of ended instances are removed too: all are locked in order before one is removed.
        PERFORM FROM (
            SELECT a.instance_id, _ack_execution[a.k] AS execution_id, _ack_activity[a.k] AS activity_id
            FROM unnest(_ack_instance) WITH ORDINALITY AS a (instance_id, k)
            UNION
            SELECT _instance[c.n], _execution[c.n], _cancel_activity[c.k]
            FROM unnest(_cancel_turn) WITH ORDINALITY AS c (n, k)
            UNION
            -- OFFSET 0: one instance after the other, though statistics may say that any instance has most of the queue.
            SELECT q.instance_id, q.execution_id, q.activity_id
            FROM unnest(_finish) AS f (instance_id)
            CROSS JOIN LATERAL (SELECT * FROM worker_queue WHERE instance_id = f.instance_id OFFSET 0) q
        ) d JOIN worker_queue q USING (instance_id, execution_id, activity_id)
        ORDER BY q.instance_id, q.execution_id, q.activity_id FOR UPDATE OF q;
    END IF;
    IF _item_order IS NOT NULL THEN
        PERFORM lock_order(_item_order);
    END IF;
    WITH removed AS (
        DELETE FROM worker_queue q
        USING unnest(_ack_instance) WITH ORDINALITY AS a (instance_id, k)
        WHERE q.instance_id = a.instance_id AND q.execution_id = _ack_execution[a.k]
          AND q.activity_id = _ack_activity[a.k] AND q.lock_token = _ack_token[a.k] AND q.locked_until > clock()
        RETURNING q.session_id
    )
    SELECT count(*), array_agg(r.session_id) INTO passed, acked FROM removed r;
    IF _state_session IS NOT NULL OR _end IS NOT NULL THEN
        -- Lock the rows of all sessions that are written below, or that must not move while their fences are checked or a
        -- watch is added. No other transaction changes the holds of an instance whose row is locked.
        ending := ARRAY(
            SELECT h.session_id
            FROM unnest(_unhold_turn) WITH ORDINALITY AS u (n, k)
            JOIN session_holds h ON h.instance_id = _instance[u.n] AND h.execution_id = _execution[u.n]
                                AND h.hold_id = _unhold_id[u.k]
            UNION
            SELECT h.session_id FROM unnest(_end) AS e (instance_id) JOIN session_holds h USING (instance_id));
        PERFORM FROM sessions s
        WHERE s.session_id = ANY (acked || _here || _state_session || ending || _hold_session || _watch_session)
        ORDER BY s.session_id FOR NO KEY UPDATE;
    END IF;
    -- Sessions that the caller holds, and holds until the commit.
    SELECT array_agg(h.session_id), array_agg(h.epoch), min(h.locked_until), (
            SELECT NOT w.draining FROM alive_workers w
            WHERE w.worker_id = _worker AND w.incarnation = _incarnation)
    INTO held, epochs, earliest, may_lock
    FROM (
        SELECT s.session_id, s.epoch, s.locked_until FROM sessions s
        WHERE s.session_id = ANY (acked || _here) AND keeps_session(s, _worker, _incarnation)
        ORDER BY s.session_id FOR NO KEY UPDATE) h;
    IF passed < cardinality(_ack_token) OR may_lock IS NULL THEN
        PERFORM refuse();
    END IF;
    moment := clock();
    IF earliest < moment + _touch_below * interval '1 s' THEN
        UPDATE sessions s SET locked_until = moment + _session_lock * interval '1 s', touched_at = moment
        WHERE s.session_id = ANY (held) AND s.locked_until < moment + _touch_below * interval '1 s';
    END IF;

    -- New work: locked to the caller where that is asked and right, else left to the holder of its session. Items of one
    -- batch are a microsecond apart, so that they are delivered in their order.
    IF _item_here IS NULL AND may_lock AND (held = _here OR held @> _here OR _here = '{}') THEN
        INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload,
            lock_worker, lock_incarnation, lock_token, locked_until, attempts, enqueued_at)
        SELECT _instance[w.n], _execution[w.n], _item_activity[w.k], _item_name[w.k], _item_session[w.k],
            CASE WHEN _item_session[w.k] IS NULL THEN 'free' ELSE 'w:' || _worker END,
            moment + w.k * interval '1 us', _item_payload[w.k],
            _worker, _incarnation, _token || '.' || w.k, moment + _item_lock * interval '1 s', 1, moment
        FROM unnest(_item_turn) WITH ORDINALITY AS w (n, k);
    ELSE
        IF _item_order IS NOT NULL THEN
            SELECT p.numbers, p.blocked INTO numbers, blocked FROM places_in_order(_item_order) p;
        END IF;
        IF true = ANY (_item_limited) THEN
            SELECT array_agg(g.limited AND g.passed IS NOT TRUE ORDER BY g.k) INTO gated
            FROM unnest(_item_limited, (
                SELECT pass_gates(
                    array_agg(_instance[w.n] ORDER BY w.k), array_agg(_execution[w.n] ORDER BY w.k),
                    array_agg(_item_activity[w.k] ORDER BY w.k),
                    array_agg(CASE WHEN _item_limited[w.k] AND _item_delay[w.k] <= 0 AND blocked[w.k] IS NOT TRUE
                                   THEN _item_gate[w.k] END ORDER BY w.k))
                FROM unnest(_item_turn) WITH ORDINALITY AS w (n, k)
            )) WITH ORDINALITY AS g (limited, passed, k);
        END IF;
        SELECT array_agg(p.locked ORDER BY p.k), array_agg(p.holder ORDER BY p.k), array_agg(p.route ORDER BY p.k)
        INTO locked, holders, routes
        FROM (
            SELECT w.k, s.holder, s.route,
                (_item_here IS NULL OR _item_here[w.k] AND _item_delay[w.k] <= 0) AND may_lock
                -- Only of a session that is locked above: else a writer without a lease could change its epoch.
                AND (w.session_id IS NULL OR (s.session_id = ANY (held)) IS TRUE) AND blocked[w.k] IS NOT TRUE
                AND gated[w.k] IS NOT TRUE AS locked
            FROM unnest(_item_session) WITH ORDINALITY AS w (session_id, k)
            LEFT JOIN session_routes s ON s.session_id = w.session_id) p;
        INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload,
            lock_worker, lock_incarnation, lock_token, locked_until, attempts, enqueued_at, order_session, order_number,
            gate, limited, gate_session)
        SELECT _instance[w.n], _execution[w.n], _item_activity[w.k], _item_name[w.k],
            CASE WHEN blocked[w.k] IS NOT TRUE AND gated[w.k] IS NOT TRUE THEN _item_session[w.k] END,
            CASE WHEN blocked[w.k] THEN 'blocked'
                 WHEN gated[w.k] THEN 'gate'
                 WHEN _item_session[w.k] IS NULL THEN 'free'
                 WHEN routes[w.k] IS NOT NULL THEN routes[w.k]
                 WHEN _item_claim[w.k] AND _item_delay[w.k] <= 0 THEN 'new:' || _worker ELSE 'new' END,
            moment + ((coalesce(_item_delay[w.k], 0) - CASE WHEN gated[w.k] THEN 0
                ELSE coalesce(_item_head_start[w.k], 0) END) * interval '1 s' + w.k * interval '1 us'),
            _item_payload[w.k],
            CASE WHEN locked[w.k] THEN _worker END, CASE WHEN locked[w.k] THEN _incarnation END,
            CASE WHEN locked[w.k] THEN _token || '.' || w.k END,
            CASE WHEN locked[w.k] THEN moment + _item_lock * interval '1 s' END, locked[w.k]::int, moment,
            _item_order[w.k], numbers[w.k], _item_gate[w.k], _item_limited[w.k],
            CASE WHEN _item_limited[w.k] THEN _item_session[w.k] END
        FROM unnest(_item_turn) WITH ORDINALITY AS w (n, k);
    END IF;

    IF _state_session IS NOT NULL THEN
        UPDATE session_states r
        SET state = _state[w.k], encoding = _state_encoding[w.k], schema_version = _state_schema[w.k],
            kind = _state_kind[w.k], name = _state_name[w.k], parent = _state_parent[w.k],
            labels = _state_labels[w.k]::jsonb, message_count = _state_messages[w.k],
            participants = _state_participants[w.k]::jsonb, version = r.version + 1, epoch = _state_epoch[w.k],
            turn = NULL, updated_at = clock()
        FROM unnest(_state_session) WITH ORDINALITY AS w (session_id, k)
        WHERE r.session_id = w.session_id AND r.version = _state_base[w.k]
          AND (r.epoch > _state_epoch[w.k]) IS NOT TRUE
          AND NOT EXISTS (SELECT FROM sessions s WHERE s.session_id = w.session_id AND s.epoch > _state_epoch[w.k]);
        GET DIAGNOSTICS passed = ROW_COUNT;
        -- Without ON CONFLICT: if another transaction writes the first version too, one of them fails (errors.py: Contention).
        INSERT INTO session_states (session_id, state, encoding, schema_version, kind, name, parent, labels,
            message_count, participants, version, epoch, created_at, updated_at)
        SELECT w.session_id, _state[w.k], _state_encoding[w.k], _state_schema[w.k], _state_kind[w.k], _state_name[w.k],
            _state_parent[w.k], _state_labels[w.k]::jsonb, _state_messages[w.k], _state_participants[w.k]::jsonb, 1,
            _state_epoch[w.k], moment, moment
        FROM unnest(_state_session) WITH ORDINALITY AS w (session_id, k)
        WHERE _state_base[w.k] = 0
          AND NOT EXISTS (SELECT FROM sessions s WHERE s.session_id = w.session_id AND s.epoch > _state_epoch[w.k]);
        GET DIAGNOSTICS added = ROW_COUNT;
        IF passed + added < cardinality(_state_session) THEN
            PERFORM refuse();
        END IF;
    END IF;

    IF _end IS NOT NULL THEN
        DELETE FROM session_holds h USING unnest(_unhold_turn) WITH ORDINALITY AS u (n, k)
        WHERE h.instance_id = _instance[u.n] AND h.execution_id = _execution[u.n] AND h.hold_id = _unhold_id[u.k];
        DELETE FROM session_holds h WHERE h.instance_id = ANY (_end);
        -- Where a hold has ended, the lock is cut back to the latest one that is left.
        UPDATE sessions s SET locked_until = b.until
        FROM (
            SELECT e.session_id, greatest(clock() + _session_lock * interval '1 s', max(h.until)) AS until
            FROM unnest(ending) AS e (session_id) LEFT JOIN session_holds h USING (session_id)
            GROUP BY e.session_id) b
        WHERE s.session_id = b.session_id AND s.locked_until > b.until;
        INSERT INTO session_holds (instance_id, execution_id, hold_id, session_id, until, session_lock)
        SELECT _instance[h.n], _execution[h.n], _hold_id[h.k], _hold_session[h.k],
            clock() + _hold_seconds[h.k] * interval '1 s', _session_lock
        FROM unnest(_hold_turn) WITH ORDINALITY AS h (n, k)
        ON CONFLICT (instance_id, execution_id, hold_id) DO UPDATE
        SET session_id = excluded.session_id, until = excluded.until, session_lock = excluded.session_lock;
        UPDATE sessions s SET locked_until = clock() + x.seconds * interval '1 s'
        FROM (
            SELECT h.session_id, max(_hold_seconds[h.k]) AS seconds
            FROM unnest(_hold_session) WITH ORDINALITY AS h (session_id, k) JOIN held_sessions USING (session_id)
            GROUP BY h.session_id) x
        WHERE s.session_id = x.session_id AND s.locked_until < clock() + x.seconds * interval '1 s';
        INSERT INTO session_watches (session_id, instance_id, payload)
        SELECT w.session_id, _instance[_watch_turn[w.k]], _watch[w.k]
        FROM unnest(_watch_session) WITH ORDINALITY AS w (session_id, k)
        ON CONFLICT (session_id, instance_id) DO UPDATE SET payload = excluded.payload;
    END IF;

    IF _finish IS NOT NULL THEN
        -- Removals come last: this batch may have queued the rows that they remove.
        INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload, timer_execution, timer_id)
        SELECT m.instance_id, r.route, greatest(moment + _message_delay[m.k] * interval '1 s', r.starts_at), _message[m.k],
            _message_execution[m.k], _message_timer[m.k]
        FROM unnest(_message_instance) WITH ORDINALITY AS m (instance_id, k) JOIN message_routes r USING (instance_id)
        WHERE _message_generation[m.k] IS NULL OR r.generation = _message_generation[m.k]
        ORDER BY m.k;
        DELETE FROM orchestrator_queue o USING unnest(_timer_turn) WITH ORDINALITY AS t (n, k)
        WHERE o.instance_id = _instance[t.n] AND o.timer_execution = _execution[t.n] AND o.timer_id = _timer_id[t.k];
        DELETE FROM orchestrator_queue WHERE instance_id = ANY (_finish);
        DELETE FROM worker_queue q USING unnest(_cancel_turn) WITH ORDINALITY AS c (n, k)
        WHERE q.instance_id = _instance[c.n] AND q.execution_id = _execution[c.n]
          AND q.activity_id = _cancel_activity[c.k];
        DELETE FROM worker_queue WHERE instance_id = ANY (_finish);
        DELETE FROM session_watches WHERE instance_id = ANY (_finish);
    END IF;
    RETURN (held, epochs, locked, holders);
END $$;

-- Commits one turn that takes one result, as `commit_turns` does; returns the epoch of the result's session. It is the batch of a
-- worker that has little to do. Most of its time goes into starting statements, which takes half as long again with arrays of
-- one element.
--
-- The turn queues an item that is to run here, of the session of the result or without one; or it writes the state of that session.
-- A guest's function calls it for a turn that also writes rows of the guest.
--
-- Raises `refuse` if the turn does not pass, and in these cases, in which the general functions commit it: the item cannot be
-- locked to the caller; the state is of another session than the result; the session has no row.
CREATE FUNCTION commit_turn(
    _worker text, _incarnation text, _session_lock float8, _touch_below float8,
    _instance text, _generation text, _execution bigint, _events bigint, _event text[],
    _ack_activity bigint, _ack_token text,
    -- New work.
    _token text = NULL, _item_lock float8 = NULL,
    _item_activity bigint = NULL, _item_name text = NULL, _item_session text = NULL, _item_payload text = NULL,
    -- The state.
    _state_session text = NULL, _state_base bigint = NULL, _state_epoch bigint = NULL, _state bytea = NULL,
    _state_encoding text = NULL, _state_schema bigint = NULL, _state_kind text = NULL, _state_name text = NULL,
    _state_parent text = NULL, _state_labels text = NULL, _state_messages bigint = NULL,
    _state_participants text = NULL
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    acked text;             -- session of the result
    session_epoch bigint;
    held_until timestamptz; -- NULL: the caller does not hold it
    may_lock boolean;       -- false: draining; NULL: the worker's lease has ended
    moment timestamptz;
BEGIN
    UPDATE instances i
    SET event_count = i.event_count + cardinality(_event), claims = 0, unknown_since = NULL, updated_at = clock()
    WHERE i.instance_id = _instance AND passes_fence(i, _worker, _incarnation, _generation, _execution, _events);
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
    IF NOT FOUND THEN
        PERFORM refuse();
    END IF;
    IF acked IS NOT NULL THEN
        SELECT s.epoch, CASE WHEN keeps_session(s, _worker, _incarnation) THEN s.locked_until END
        INTO session_epoch, held_until FROM sessions s WHERE s.session_id = acked FOR NO KEY UPDATE;
    END IF;
    SELECT NOT w.draining INTO may_lock FROM alive_workers w WHERE w.worker_id = _worker AND w.incarnation = _incarnation;
    IF may_lock IS NULL
       OR _item_activity IS NOT NULL
          AND (NOT may_lock OR _item_session IS DISTINCT FROM acked OR acked IS NOT NULL AND held_until IS NULL)
       OR _state_session IS NOT NULL AND (_state_session = acked AND session_epoch <= _state_epoch) IS NOT TRUE THEN
        PERFORM refuse();
    END IF;
    moment := clock();
    IF held_until < moment + _touch_below * interval '1 s' THEN
        UPDATE sessions s SET locked_until = moment + _session_lock * interval '1 s', touched_at = moment
        WHERE s.session_id = acked;
    END IF;

    IF _item_activity IS NOT NULL THEN
        INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload,
            lock_worker, lock_incarnation, lock_token, locked_until, attempts, enqueued_at)
        VALUES (_instance, _execution, _item_activity, _item_name, _item_session,
            CASE WHEN _item_session IS NULL THEN 'free' ELSE 'w:' || _worker END, moment, _item_payload,
            _worker, _incarnation, _token, moment + _item_lock * interval '1 s', 1, moment);
        RETURN session_epoch;
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
    RETURN session_epoch;
END $$;

-- Keeps the failures of turns, behind their commit, and of parts. What a former attempt to commit them has kept stays.
-- _retried: whether what has failed is tried again; NULL: none is. _only: numbers of the failures to keep; NULL: all.
CREATE FUNCTION keep_failures(_instance text[], _execution bigint[], _activity bigint[], _attempt bigint[], _kind text[],
    _name text[], _error_type text[], _error text[], _retried boolean[] = NULL, _only bigint[] = NULL) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO failures (instance_id, execution_id, activity_id, attempt, kind, name, error_type, is_retried, failed_at, error)
    SELECT f.instance_id, _execution[f.k], _activity[f.k], _attempt[f.k], _kind[f.k], _name[f.k], _error_type[f.k],
        coalesce(_retried[f.k], false), c.now, _error[f.k]
    FROM unnest(_instance) WITH ORDINALITY AS f (instance_id, k) CROSS JOIN (SELECT clock() AS now OFFSET 0) c
    WHERE _only IS NULL OR f.k = ANY (_only)
    ON CONFLICT DO NOTHING
$$;
