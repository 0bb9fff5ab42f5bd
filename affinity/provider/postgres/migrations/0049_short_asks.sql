-- What an ask costs.
-- oldest code: 47

-- One input of a journal that is there, for an instance whose next work item sleeps: the append of a client that makes one at
-- a time, with scalars in place of arrays of one element. All else is done by append_journals_2, with the same answer.
CREATE FUNCTION append_input_1(
    _session text, _kind text, _entry_kind text, _entry text, _event text, _message text, _unread_limit bigint,
    OUT outcome text, OUT seq bigint, OUT journal bigint, OUT woken boolean, OUT holder text
) LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    base bigint;
    item asleep_items;
    route text;
    moment timestamptz;
BEGIN
    woken := false;
    SELECT j.journal_id, j.last_seq + 1, j.base_id INTO journal, seq, base FROM journals j
    WHERE j.session_id = _session AND j.kind = _kind AND NOT j.closed FOR NO KEY UPDATE;
    IF FOUND THEN
        PERFORM FROM journal_entries e WHERE e.journal_id = journal AND e.event_id = _event;
        IF NOT FOUND AND (base IS NULL OR find_inherited_event(journal, _event) IS NULL) THEN
            UPDATE asleep_items a SET asleep = false
            FROM instances i
            WHERE a.instance_id = _session AND a.asleep
              AND i.instance_id = a.instance_id AND i.birth = a.birth AND i.execution_id = a.execution_id
              AND i.status IN ('pending', 'running', 'suspended')
              AND NOT EXISTS (SELECT FROM quotas q WHERE q.instance_bytes IS NOT NULL)
            RETURNING a.* INTO item;
            woken := FOUND;
        END IF;
    END IF;
    IF NOT woken THEN
        SELECT a.outcomes[1], a.seqs[1], a.journal_ids[1], a.woken[1], a.holders[1]
        INTO outcome, seq, journal, woken, holder
        FROM append_journals_2(ARRAY[_session], ARRAY[_kind], ARRAY[_entry_kind], ARRAY[_entry], ARRAY[_event],
            ARRAY[NULL], ARRAY[true], ARRAY[_message], ARRAY[_unread_limit]) a;
        RETURN;
    END IF;
    SELECT coalesce(m.next_worker, h.worker_id), coalesce(m.route, 'w:' || h.worker_id, 'new') INTO holder, route
    FROM held_sessions h LEFT JOIN planned_moves m ON m.session_id = h.session_id
    WHERE h.session_id = item.session_id;
    moment := clock();
    INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload, enqueued_at)
    VALUES (_session, item.execution_id, item.activity_id, item.name, item.session_id,
        CASE WHEN item.session_id IS NULL THEN 'free' ELSE coalesce(route, 'new') END, moment, item.payload, moment);
    INSERT INTO journal_entries (journal_id, seq, recorded_at, is_input, kind, event_id, payload)
    VALUES (journal, seq, moment, true, _entry_kind, _event, _entry);
    UPDATE journals j SET last_seq = seq, size = j.size + octet_length(_entry), updated_at = moment
    WHERE j.journal_id = journal;
END $$;

-- Wakes items, as before, without a join of all that it queues with all that it was given.
CREATE OR REPLACE FUNCTION wake_items_1(_instance text[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    moment timestamptz := clock();
    missing bigint := cardinality(array_remove(_instance, NULL));
    holders text[] := array_fill(NULL::text, ARRAY[cardinality(_instance)]);
    place bigint;
    worker text;
BEGIN
    FOR place, worker IN
        WITH item AS (
            UPDATE asleep_items a SET asleep = false
            FROM unnest(_instance) WITH ORDINALITY AS w (instance_id, k)
            WHERE a.instance_id = w.instance_id
            RETURNING a.*, w.k
        ), routed AS MATERIALIZED (
            SELECT i.*, coalesce(m.next_worker, h.worker_id) AS holder, coalesce(m.route, 'w:' || h.worker_id) AS route
            FROM item i
            LEFT JOIN held_sessions h ON h.session_id = i.session_id
            LEFT JOIN planned_moves m ON m.session_id = h.session_id
        ), queued AS (
            INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload,
                enqueued_at)
            SELECT r.instance_id, r.execution_id, r.activity_id, r.name, r.session_id,
                CASE WHEN r.session_id IS NULL THEN 'free' ELSE coalesce(r.route, 'new') END,
                moment + r.k * interval '1 us', r.payload, moment
            FROM routed r
        )
        SELECT r.k, r.holder FROM routed r
    LOOP
        holders[place] := worker;
        missing := missing - 1;
    END LOOP;
    IF missing > 0 THEN
        PERFORM refuse(); -- its execution has ended in this moment
    END IF;
    RETURN holders;
END $$;

-- What wakes add: without a join of all entries with all writes, which takes as long as their product.
DO $do$
DECLARE
    before text := $sql$    WITH written AS (
        UPDATE journals j
        SET processed = _processed[w.n], last_seq = j.last_seq + _added[w.n], size = j.size + _size[w.n],
            ended_wake = _wake[w.n], ended_attempt = CASE WHEN j.ended_wake = _wake[w.n]
                THEN greatest(j.ended_attempt, _attempt[w.n]) ELSE _attempt[w.n] END,
            updated_at = clock()
        FROM unnest(_session) WITH ORDINALITY AS w (session_id, n)
        WHERE j.session_id = w.session_id AND j.journal_id = _journal[w.n] AND j.processed = _base[w.n]
          AND (_only IS NULL OR w.n = ANY (_only))
        RETURNING w.n, j.last_seq - _added[w.n] AS last
    ), added AS (
        INSERT INTO journal_entries (journal_id, seq, recorded_at, is_input, kind, event_id, wake_id, payload)
        SELECT _journal[w.n], w.last + _entry_place[e.k], (SELECT clock()), coalesce(_entry_input[e.k], false),
            _entry_kind[e.k], _entry_event[e.k], _entry_wake[e.k], _entry[e.k]
        FROM unnest(_entry_write) WITH ORDINALITY AS e (n, k) JOIN written w ON w.n = e.n
        WHERE _entry_place[e.k] IS NOT NULL
    )
    SELECT count(*) INTO passed FROM written w;
    IF passed < cardinality(coalesce(_only, _journal)) THEN
        PERFORM refuse();
    END IF;
$sql$;
    after text := $sql$    FOR place, last IN
        UPDATE journals j
        SET processed = _processed[w.n], last_seq = j.last_seq + _added[w.n], size = j.size + _size[w.n],
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
$sql$;
    changed text := replace(replace(pg_get_functiondef('write_journals_1'::regproc), before, after),
        'passed bigint;', 'passed bigint := 0; place bigint; last bigint; lasts bigint[];');
BEGIN
    ASSERT strpos(changed, after) > 0 AND strpos(changed, 'lasts bigint[];') > 0;
    EXECUTE changed;
END $do$;

DO $do$
BEGIN
    EXECUTE format('ALTER FUNCTION append_input_1 SET search_path = %I, pg_temp', current_schema);
    EXECUTE replace(pg_get_functiondef('bounce_journals_1'::regproc), 'append_journals_1', 'append_journals_2');
END $do$;
REVOKE EXECUTE ON FUNCTION append_input_1 FROM PUBLIC;

-- append_journals_1 of the release before the last one called it, which calls append_journals_2 now.
DROP FUNCTION append_other_journals_1;
