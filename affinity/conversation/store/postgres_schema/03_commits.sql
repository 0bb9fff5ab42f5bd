-- What wakes add to their journals, in the transaction of a turn or of an ack.

-- Commits the turn of a wake, as `commit_turn`, `write_journals` and `park_items` do: it takes the result of the wake, with its
-- entries, the state of its session and the next parked wake. No entry is an input or has an event id. The parked item is of the
-- instance whose journal this is.
--
-- Raises `refuse` if the turn does not pass, and in these cases, in which the general functions commit it: those of `commit_turn`;
-- the item may not be parked.
CREATE FUNCTION commit_wake(
    _worker text, _incarnation text, _session_lock float8, _touch_below float8,
    _instance text, _generation text, _execution bigint, _events bigint, _event text[],
    _ack_activity bigint, _ack_token text, _item_lock float8,
    _session text, _journal bigint, _base bigint, _processed bigint, _wake text, _attempt bigint,
    _entry_kind text[], _entry text[], _size bigint, _clear boolean,
    _outcome text, _reason text, _read bigint, _number bigint, _error text,
    _state_session text = NULL, _state_base bigint = NULL, _state_epoch bigint = NULL, _state bytea = NULL,
    _state_encoding text = NULL, _state_schema bigint = NULL, _state_kind text = NULL, _state_name text = NULL,
    _state_parent text = NULL, _state_labels text = NULL, _state_messages bigint = NULL,
    _state_participants text = NULL,
    _parked_activity bigint = NULL, _parked_name text = NULL, _parked_session text = NULL, _parked_payload text = NULL,
    _parked_gate text = NULL, _parked_limited boolean = NULL
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    session_epoch bigint;
    last bigint;      -- last entry of the journal before the wake's entries
    inherited bigint; -- last entry that the journal has from another one
    moment timestamptz;
BEGIN
    session_epoch := commit_turn(
        _worker, _incarnation, _session_lock, _touch_below, _instance, _generation, _execution, _events, _event,
        _ack_activity, _ack_token, _item_lock => _item_lock,
        _state_session => _state_session, _state_base => _state_base, _state_epoch => _state_epoch, _state => _state,
        _state_encoding => _state_encoding, _state_schema => _state_schema, _state_kind => _state_kind,
        _state_name => _state_name, _state_parent => _state_parent, _state_labels => _state_labels,
        _state_messages => _state_messages, _state_participants => _state_participants);
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
    INSERT INTO journal_wakes (journal_id, seq, base, read, processed, attempt, outcome, reason, wake_id, error)
    VALUES (_journal, last + cardinality(_entry), _base, _read, _processed, _number, _outcome, _reason, _wake, _error);
    IF _clear THEN
        DELETE FROM journal_streams s WHERE s.journal_id = _journal;
    END IF;

    IF _parked_activity IS NOT NULL THEN
        PERFORM FROM journal_entries e WHERE e.journal_id = _journal AND e.is_input AND e.seq > _processed LIMIT 1;
        IF FOUND OR _processed < inherited THEN
            PERFORM refuse();
        END IF;
        -- No other transaction adds the row of an instance that is locked.
        UPDATE parked_items a
        SET generation = _generation, execution_id = _execution, activity_id = _parked_activity, name = _parked_name,
            session_id = _parked_session, payload = _parked_payload, parked = true, gate = _parked_gate,
            limited = _parked_limited
        WHERE a.instance_id = _instance;
        IF NOT FOUND THEN
            INSERT INTO parked_items (instance_id, generation, execution_id, activity_id, name, session_id, payload, parked,
                gate, limited)
            VALUES (_instance, _generation, _execution, _parked_activity, _parked_name, _parked_session, _parked_payload,
                true, _parked_gate, _parked_limited);
        END IF;
    END IF;
    RETURN session_epoch;
END $$;

-- Writes what wakes add to their journals: see `JournalWrite`. There is one write for a session, and the writes are in the order of
-- their sessions. Columns that a batch does not need are NULL.
-- _added, _size: the number of entries of a write, and their bytes.
-- _entry_write, _entry_place: the number of the write that an entry belongs to, and its place among the entries of that write.
-- _outcome, _reason, _read, _number, _error: how the wake has ended; without an outcome it goes on.
-- _part: numbers of the writes whose wakes go on.
-- _rare: new and ended requests, revisits and delegations; steps, and the numbers of the writes that clear their steps.
-- _also: sessions of other journals to which the statement appends afterwards; all journals are locked together.
-- _only: numbers of the writes to do; the others are left out.
CREATE FUNCTION write_journals(
    _session text[], _journal bigint[], _base bigint[], _processed bigint[], _wake text[], _attempt bigint[],
    _added bigint[], _size bigint[],
    _entry_write bigint[], _entry_place bigint[], _entry_kind text[], _entry_wake text[], _entry text[],
    _entry_event text[] = NULL, _entry_input boolean[] = NULL, _clear bigint[] = NULL, _rare json = NULL,
    _also text[] = NULL, _only bigint[] = NULL, _part bigint[] = NULL,
    _outcome text[] = NULL, _reason text[] = NULL, _read bigint[] = NULL, _number bigint[] = NULL, _error text[] = NULL
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    passed bigint := 0; place bigint; last bigint; lasts bigint[];
    cleared bigint[];
BEGIN
    IF _entry_event IS NOT NULL OR _also IS NOT NULL THEN
        PERFORM FROM journals j WHERE j.session_id = ANY (_session || _also) ORDER BY j.session_id FOR NO KEY UPDATE;
    END IF;
    IF _entry_event IS NOT NULL THEN
        -- Left out: entries whose event id is in the journal already, and repetitions of an event id within the write.
        WITH entry AS MATERIALIZED (
            SELECT w.n, w.k, w.copy = 1 AND coalesce(
                (SELECT e.seq FROM journal_entries e WHERE e.journal_id = _journal[w.n] AND e.event_id = _entry_event[w.k]),
                CASE WHEN (SELECT j.base_id FROM journals j WHERE j.journal_id = _journal[w.n]) IS NOT NULL
                     THEN find_inherited_event(_journal[w.n], _entry_event[w.k]) END) IS NULL AS is_new
            FROM (
                SELECT e.n, e.k, row_number() OVER (
                    PARTITION BY e.n, coalesce(_entry_event[e.k], ''), CASE WHEN _entry_event[e.k] IS NULL THEN e.k END
                    ORDER BY e.k) AS copy
                FROM unnest(_entry_write) WITH ORDINALITY AS e (n, k)) w
        ), placed AS MATERIALIZED (
            SELECT e.n, e.k, row_number() OVER (PARTITION BY e.n ORDER BY e.k) AS place FROM entry e WHERE e.is_new
        )
        SELECT ARRAY (SELECT p.place FROM entry e LEFT JOIN placed p ON p.k = e.k ORDER BY e.k),
            ARRAY (
                SELECT (SELECT count(*) FROM placed p WHERE p.n = w.n)
                FROM unnest(_session) WITH ORDINALITY AS w (session_id, n) ORDER BY w.n),
            ARRAY (
                SELECT (SELECT coalesce(sum(octet_length(_entry[p.k])), 0) FROM placed p WHERE p.n = w.n)
                FROM unnest(_session) WITH ORDINALITY AS w (session_id, n) ORDER BY w.n)
        INTO _entry_place, _added, _size;
    END IF;
    FOR place, last IN
        UPDATE journals j
        SET processed = CASE WHEN w.n = ANY (_part) THEN j.processed ELSE _processed[w.n] END,
            last_seq = j.last_seq + _added[w.n], size = j.size + _size[w.n],
            ended_wake = _wake[w.n], ended_attempt = CASE WHEN j.ended_wake = _wake[w.n]
                THEN greatest(j.ended_attempt, _attempt[w.n]) ELSE _attempt[w.n] END,
            updated_at = clock()
        FROM unnest(_session) WITH ORDINALITY AS w (session_id, n)
        WHERE j.session_id = w.session_id AND j.journal_id = _journal[w.n] AND j.processed = _base[w.n]
          AND (_only IS NULL OR w.n = ANY (_only))
        RETURNING w.n, j.last_seq - _added[w.n]
    LOOP
        lasts[place] := last;
        passed := passed + 1;
    END LOOP;
    IF passed < cardinality(coalesce(_only, _journal)) THEN
        PERFORM refuse();
    END IF;
    INSERT INTO journal_entries (journal_id, seq, recorded_at, is_input, kind, event_id, wake_id, payload)
    SELECT _journal[e.n], lasts[e.n] + _entry_place[e.k], (SELECT clock()), coalesce(_entry_input[e.k], false),
        _entry_kind[e.k], _entry_event[e.k], _entry_wake[e.k], _entry[e.k]
    FROM unnest(_entry_write) WITH ORDINALITY AS e (n, k)
    WHERE lasts[e.n] IS NOT NULL AND _entry_place[e.k] IS NOT NULL;
    INSERT INTO journal_wakes (journal_id, seq, base, read, processed, attempt, outcome, reason, wake_id, error)
    SELECT _journal[w.n], lasts[w.n] + _added[w.n], _base[w.n], _read[w.n], _processed[w.n], _number[w.n], w.outcome,
        _reason[w.n], _wake[w.n], _error[w.n]
    FROM unnest(_outcome) WITH ORDINALITY AS w (outcome, n)
    WHERE w.outcome IS NOT NULL AND lasts[w.n] IS NOT NULL;
    IF _clear IS NOT NULL THEN
        cleared := ARRAY (SELECT _journal[c.n] FROM unnest(_clear) AS c (n) WHERE _only IS NULL OR c.n = ANY (_only));
        DELETE FROM journal_streams s WHERE s.journal_id = ANY (cleared);
    END IF;
    IF _rare IS NOT NULL THEN
        DELETE FROM journal_requests r USING json_to_recordset(_rare -> 'ended_requests') AS x (n bigint, id text)
        WHERE r.journal_id = _journal[x.n] AND r.request_id = x.id AND (_only IS NULL OR x.n = ANY (_only));
        DELETE FROM journal_revisits r USING json_to_recordset(_rare -> 'ended_revisits') AS x (n bigint, key text)
        WHERE r.journal_id = _journal[x.n] AND r.key = x.key AND (_only IS NULL OR x.n = ANY (_only));
        DELETE FROM journal_delegations d USING json_to_recordset(_rare -> 'ended_delegations') AS x (n bigint, id text)
        WHERE d.journal_id = _journal[x.n] AND d.delegation_id = x.id AND (_only IS NULL OR x.n = ANY (_only));
        INSERT INTO journal_delegations (journal_id, delegation_id, child)
        SELECT _journal[x.n], x.id, x.child FROM json_to_recordset(_rare -> 'delegations') AS x (n bigint, id text, child text)
        WHERE _only IS NULL OR x.n = ANY (_only)
        ON CONFLICT (journal_id, delegation_id) DO NOTHING;
        DELETE FROM journal_steps s USING json_to_recordset(_rare -> 'cleared_steps') AS x (n bigint)
        WHERE s.journal_id = _journal[x.n] AND (_only IS NULL OR x.n = ANY (_only));
        INSERT INTO journal_steps (journal_id, wake_id, key, arguments, result)
        SELECT _journal[x.n], x.wake, x.key, x.arguments, x.result
        FROM json_to_recordset(_rare -> 'steps') AS x (n bigint, wake text, key text, arguments text, result text)
        WHERE _only IS NULL OR x.n = ANY (_only)
        ON CONFLICT (journal_id, wake_id, key) DO UPDATE SET arguments = excluded.arguments, result = excluded.result;
        INSERT INTO journal_requests (journal_id, request_id, kind, wake_id, seq, place, created_at, expires_at, payload)
        SELECT j.journal_id, x.id, x.kind, _wake[x.n], coalesce((
                SELECT min(e.seq) FROM journal_entries e WHERE e.journal_id = j.journal_id AND e.wake_id = _wake[x.n]),
            j.last_seq), x.k, c.now, c.now + x.expires_in * interval '1 s', x.payload
        FROM ROWS FROM (
            json_to_recordset(_rare -> 'requests') AS (n bigint, id text, kind text, payload text, expires_in float8)
        ) WITH ORDINALITY AS x (n, id, kind, payload, expires_in, k)
        JOIN journals j ON j.journal_id = _journal[x.n] CROSS JOIN (SELECT clock() AS now) c
        WHERE j.dropped_seq <= _processed[x.n] AND (_only IS NULL OR x.n = ANY (_only))
        ORDER BY x.k
        ON CONFLICT (journal_id, request_id) DO NOTHING;
        INSERT INTO journal_revisits (journal_id, key, due_at, priority, reason, note, wake_id)
        SELECT j.journal_id, x.key, clock() + x.delay * interval '1 s', x.priority, x.reason, x.note, _wake[x.n]
        FROM ROWS FROM (
            json_to_recordset(_rare -> 'revisits')
            AS (n bigint, key text, delay float8, priority bigint, reason text, note text)
        ) WITH ORDINALITY AS x (n, key, delay, priority, reason, note, k)
        JOIN journals j ON j.journal_id = _journal[x.n]
        WHERE j.dropped_seq <= _processed[x.n] AND (_only IS NULL OR x.n = ANY (_only))
        ORDER BY x.k
        ON CONFLICT (journal_id, key) DO NOTHING;
    END IF;
END $$;
