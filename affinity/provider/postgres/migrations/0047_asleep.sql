-- Work items that sleep: see `NewWorkItem.asleep`. They are in a table of their own, so no statement on the queue reads them.

-- One row per instance, written again and again in place. asleep: it waits for an input; false: it was queued, or cancelled.
-- A row counts for the birth and the execution that it names, and for no other one of its instance. Its journal is that of
-- the instance's id: who changes `asleep` of a live execution has locked that. So no input is pending while an item sleeps.
CREATE TABLE asleep_items (
    instance_id text COLLATE "C" PRIMARY KEY,
    birth text COLLATE "C" NOT NULL,
    execution_id bigint NOT NULL,
    activity_id integer NOT NULL,
    name text COLLATE "C" NOT NULL,
    session_id text COLLATE "C",
    payload text NOT NULL,
    asleep boolean NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);

-- Wakes items: queues them, in their order, where their sessions are. Returns the workers that are to fetch them, by
-- position. Elements that are NULL are skipped. The journals are locked.
CREATE FUNCTION wake_items_1(_instance text[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    moment timestamptz := clock();
    missing bigint;
    holders text[];
BEGIN
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
    SELECT count(w.instance_id) - count(r.k), array_agg(r.holder ORDER BY w.k) INTO missing, holders
    FROM unnest(_instance) WITH ORDINALITY AS w (instance_id, k) LEFT JOIN routed r ON r.k = w.k;
    IF missing > 0 THEN
        PERFORM refuse(); -- its execution has ended in this moment
    END IF;
    RETURN holders;
END $$;

-- Puts items to sleep, called behind a commit of their turns and what wakes have added to their journals; before that,
-- removes items that the turns cancel. Those that may not sleep are queued. By position: NULL if the item sleeps, else the
-- worker that is to fetch it, or an empty text; NULL: all sleep. `_lock` has the sessions of the journals, unless the
-- transaction has locked these.
CREATE FUNCTION sleep_items_1(
    _instance text[] = NULL, _birth text[] = NULL, _execution bigint[] = NULL, _activity bigint[] = NULL,
    _name text[] = NULL, _session text[] = NULL, _payload text[] = NULL, _lock text[] = NULL,
    _cancel_instance text[] = NULL, _cancel_execution bigint[] = NULL, _cancel_activity bigint[] = NULL
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    awake text[];
    queued text[];
BEGIN
    -- Only a commit of an instance adds its row. Most instances that cancel something have none.
    IF _instance IS NULL AND (SELECT true FROM asleep_items a WHERE a.instance_id = ANY (_cancel_instance) LIMIT 1) IS NULL THEN
        RETURN NULL;
    END IF;
    IF _lock IS NOT NULL THEN
        PERFORM FROM journals j WHERE j.session_id = ANY (_lock) ORDER BY j.session_id FOR NO KEY UPDATE;
    END IF;
    IF _cancel_instance IS NOT NULL THEN
        UPDATE asleep_items a SET asleep = false
        FROM unnest(_cancel_instance) WITH ORDINALITY AS c (instance_id, k)
        WHERE a.instance_id = c.instance_id AND a.execution_id = _cancel_execution[c.k]
          AND a.activity_id = _cancel_activity[c.k] AND a.asleep;
        -- What an append has queued after the commit had looked into the queue.
        DELETE FROM worker_queue q
        USING unnest(_cancel_instance) WITH ORDINALITY AS c (instance_id, k) JOIN asleep_items a USING (instance_id)
        WHERE a.execution_id = _cancel_execution[c.k] AND a.activity_id = _cancel_activity[c.k]
          AND q.instance_id = a.instance_id AND q.execution_id = a.execution_id AND q.activity_id = a.activity_id;
    END IF;
    IF _instance IS NULL THEN
        RETURN NULL;
    END IF;
    WITH put AS (
        INSERT INTO asleep_items AS a (instance_id, birth, execution_id, activity_id, name, session_id, payload, asleep)
        SELECT w.instance_id, _birth[w.k], _execution[w.k], _activity[w.k], _name[w.k], _session[w.k], _payload[w.k],
            CASE
                WHEN j.journal_id IS NULL THEN false
                WHEN (SELECT true FROM journal_entries e
                      WHERE e.journal_id = j.journal_id AND e.is_input AND e.seq > j.processed LIMIT 1) THEN false
                WHEN j.processed < j.base_seq THEN (
                    SELECT true FROM find_entries_1(
                        j.journal_id, j.processed, 9223372036854775807, '{}', NULL, NULL, true, false, 1)) IS NULL
                ELSE true
            END
        FROM unnest(_instance) WITH ORDINALITY AS w (instance_id, k)
        LEFT JOIN journals j ON j.session_id = w.instance_id
        ON CONFLICT (instance_id) DO UPDATE
        SET birth = excluded.birth, execution_id = excluded.execution_id, activity_id = excluded.activity_id,
            name = excluded.name, session_id = excluded.session_id, payload = excluded.payload, asleep = excluded.asleep
        RETURNING a.instance_id, a.asleep
    )
    SELECT array_agg(p.instance_id) FILTER (WHERE NOT p.asleep) INTO awake FROM put p;
    IF awake IS NULL THEN
        RETURN NULL;
    END IF;
    queued := ARRAY (
        SELECT CASE WHEN w.instance_id = ANY (awake) THEN w.instance_id END
        FROM unnest(_instance) WITH ORDINALITY AS w (instance_id, k) ORDER BY w.k);
    RETURN ARRAY (
        SELECT CASE WHEN p.instance_id IS NOT NULL THEN coalesce(p.holder, '') END
        FROM unnest(queued, wake_items_1(queued)) WITH ORDINALITY AS p (instance_id, holder, k) ORDER BY p.k);
END $$;

-- Appends to journals, as append_journals_1, and wakes: see `JournalAppend.message`. Nearly all are inputs of journals that
-- are there, each named once: they are done here. holders: of the sessions of items that were woken; NULL: none was.
CREATE FUNCTION append_journals_2(
    _session text[], _kind text[], _entry_kind text[], _entry text[], _event text[], _wake text[], _input boolean[],
    _message text[], _unread_limit bigint[],
    _start_name text[] = NULL, _start text[] = NULL, _start_birth text[] = NULL, _start_version text[] = NULL,
    _start_journal bigint[] = NULL, _start_parent text[] = NULL,
    _answer text[] = NULL, _answer_kind text[] = NULL, _answer_wake text[] = NULL, _drops boolean[] = NULL,
    _closes boolean[] = NULL, _sender text[] = NULL,
    _round bigint[] = NULL, _rounds bigint = 1, _only bigint[] = NULL,
    OUT places bigint[], OUT outcomes text[], OUT seqs bigint[], OUT journal_ids bigint[], OUT created boolean[],
    OUT woken boolean[], OUT holders text[]
) LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    most quotas;
BEGIN
    SELECT * INTO most FROM quotas;
    IF _start_name IS NOT NULL OR _closes IS NOT NULL OR _round IS NOT NULL OR _only IS NOT NULL
       OR most.instance_bytes IS NOT NULL THEN
        SELECT a.places, a.outcomes, a.seqs, a.journal_ids, a.created, a.woken, a.holders
        INTO places, outcomes, seqs, journal_ids, created, woken, holders
        FROM append_other_journals_2(_session, _kind, _entry_kind, _entry, _event, _wake, _input, _message,
            _unread_limit, _start_name, _start, _start_birth, _start_version, _start_journal, _start_parent, _answer,
            _answer_kind, _answer_wake, _drops, _closes, _sender, _round, _rounds, _only) a;
    ELSE
        PERFORM FROM journals j WHERE j.session_id = ANY (_session) ORDER BY j.session_id FOR NO KEY UPDATE;
        WITH judged AS MATERIALIZED (
            SELECT s.session_id, s.k, j.journal_id, r.route, coalesce(z.asleep, false) AS asleep,
                coalesce(z.asleep AND _input[s.k] AND _message[s.k] IS NOT NULL, false) AS wakes,
                coalesce(e.seq, j.last_seq + (_entry_kind[s.k] IS NOT NULL)::int) AS seq,
                CASE
                    WHEN j.journal_id IS NULL THEN 'unknown'
                    WHEN j.kind <> _kind[s.k] THEN 'other_kind'
                    WHEN e.seq IS NOT NULL THEN 'repeated'
                    WHEN j.closed OR i.instance_id IS NOT NULL AND r.route IS NULL THEN 'closed'
                    WHEN _message[s.k] IS NULL OR z.asleep AND _input[s.k] THEN NULL
                    WHEN i.instance_id IS NULL THEN 'unknown'
                    WHEN i.unread + (
                        SELECT count(*) FROM (
                            SELECT FROM orchestrator_queue q
                            WHERE q.instance_id = s.session_id AND q.timer_execution IS NULL
                            LIMIT least(_unread_limit[s.k], most.unread_events)
                        ) unread
                    ) >= least(_unread_limit[s.k], most.unread_events) AND _unread_limit[s.k] IS NOT NULL THEN 'full'
                END AS outcome
            FROM unnest(_session) WITH ORDINALITY AS s (session_id, k)
            LEFT JOIN journals j ON j.session_id = s.session_id
            LEFT JOIN instances i ON i.instance_id = s.session_id
            -- OFFSET 0: by the key, though statistics may say that there are few instances.
            LEFT JOIN LATERAL (SELECT m.route FROM message_routes m WHERE m.instance_id = s.session_id OFFSET 0) r ON true
            LEFT JOIN LATERAL (
                SELECT coalesce(
                    (SELECT o.seq FROM journal_entries o WHERE o.journal_id = j.journal_id AND o.event_id = _event[s.k]),
                    CASE WHEN j.base_id IS NOT NULL THEN find_inherited_event(j.journal_id, _event[s.k]) END) AS seq
                WHERE _event[s.k] IS NOT NULL) e ON true
            LEFT JOIN LATERAL (
                SELECT a.asleep FROM asleep_items a
                WHERE a.instance_id = s.session_id AND a.birth = i.birth AND a.execution_id = i.execution_id OFFSET 0
            ) z ON true
        ), sent AS (
            INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
            SELECT p.session_id, p.route, (SELECT clock()),
                replace(replace(_message[p.k], '"$SEQ"', p.seq::text), '"$ASLEEP"', p.asleep::text)
            FROM judged p WHERE p.outcome IS NULL AND _message[p.k] IS NOT NULL AND NOT p.wakes ORDER BY p.k
        ), entered AS (
            INSERT INTO journal_entries (journal_id, seq, recorded_at, is_input, kind, event_id, wake_id, payload)
            SELECT p.journal_id, p.seq, (SELECT clock()), _input[p.k], _entry_kind[p.k], _event[p.k], _wake[p.k],
                _entry[p.k]
            FROM judged p WHERE p.outcome IS NULL AND _entry_kind[p.k] IS NOT NULL
        ), changed AS (
            UPDATE journals j
            SET last_seq = p.seq, size = j.size + coalesce(octet_length(_entry[p.k]), 0), updated_at = clock()
            FROM judged p WHERE j.journal_id = p.journal_id AND p.outcome IS NULL
        )
        SELECT array_agg(p.k), array_agg(p.outcome), array_agg(p.seq), array_agg(p.journal_id), array_agg(false),
            array_agg(p.wakes AND p.outcome IS NULL)
        INTO places, outcomes, seqs, journal_ids, created, woken
        FROM judged p;
        IF true = ANY (woken) THEN
            holders := wake_items_1(ARRAY (
                SELECT CASE WHEN p.woken THEN _session[p.k] END
                FROM unnest(places, woken) WITH ORDINALITY AS p (k, woken, x) ORDER BY p.x));
        END IF;
    END IF;
END $$;

-- All other appends. In rounds, of which each names a session one time. With the rights of its caller.
CREATE FUNCTION append_other_journals_2(
    _session text[], _kind text[], _entry_kind text[], _entry text[], _event text[], _wake text[], _input boolean[],
    _message text[], _unread_limit bigint[],
    _start_name text[], _start text[], _start_birth text[], _start_version text[], _start_journal bigint[],
    _start_parent text[], _answer text[], _answer_kind text[], _answer_wake text[], _drops boolean[], _closes boolean[],
    _sender text[], _round bigint[], _rounds bigint, _only bigint[],
    OUT places bigint[], OUT outcomes text[], OUT seqs bigint[], OUT journal_ids bigint[], OUT created boolean[],
    OUT woken boolean[], OUT holders text[]
) LANGUAGE plpgsql AS $$
DECLARE
    fresh bigint[];  -- journals that this batch has created
    at bigint[];     -- of one round: places,
    ids bigint[];    -- journals,
    found text[];    -- outcomes, NULL: it passes,
    numbers bigint[]; -- numbers,
    sleeping boolean[]; -- and whether an item of the instance sleeps
    waking text[];   -- instances of those that wake it
    refused text[];
    accepted bigint[];
BEGIN
    IF _start_name IS NOT NULL AND EXISTS (
        SELECT FROM unnest(_session) WITH ORDINALITY AS s (session_id, k)
        WHERE _start_name[s.k] IS NOT NULL
          AND NOT EXISTS (
              SELECT FROM journals j JOIN instances i ON i.instance_id = j.session_id WHERE j.session_id = s.session_id))
    THEN
        fresh := start_journals(_session, _kind, _entry_kind, _event, _sender, _start_name, _start, _start_birth,
            _start_version, _start_journal, _start_parent, _only);
    END IF;
    PERFORM FROM journals j WHERE j.session_id = ANY (_session) ORDER BY j.session_id FOR NO KEY UPDATE;
    FOR this IN 1 .. _rounds LOOP
        SELECT array_agg(a.k), array_agg(a.journal_id), array_agg(a.outcome), array_agg(a.seq), array_agg(a.asleep)
        INTO at, ids, found, numbers, sleeping
        FROM (
            SELECT s.k, j.journal_id, coalesce(e.seq, j.last_seq + (_entry_kind[s.k] IS NOT NULL)::int) AS seq,
                coalesce((
                    SELECT z.asleep FROM asleep_items z
                    WHERE z.instance_id = s.session_id AND z.birth = i.birth AND z.execution_id = i.execution_id
                ), false) AS asleep,
                CASE
                    WHEN j.journal_id IS NULL AND (_start_name[s.k] IS NULL OR _entry_kind[s.k] IS NULL)
                      OR j.last_seq = 0 AND j.journal_id = ANY (fresh) AND _start_name[s.k] IS NULL THEN 'unknown'
                    WHEN j.kind <> _kind[s.k] THEN 'other_kind'
                    WHEN e.seq IS NOT NULL THEN 'repeated'
                    WHEN j.closed OR i.status NOT IN ('pending', 'running', 'suspended')
                         AND (i.name <> _start_name[s.k]) IS NOT TRUE THEN 'closed'
                    WHEN _sender[s.k] IS NOT NULL AND _sender[s.k] IS DISTINCT FROM
                         CASE WHEN j.journal_id IS NULL THEN _start_parent[s.k] ELSE j.parent END THEN 'not_parent'
                    WHEN _answer[s.k] IS NOT NULL AND NOT EXISTS (
                        SELECT FROM journal_requests r
                        WHERE r.journal_id = j.journal_id AND r.request_id = _answer[s.k] AND r.kind = _answer_kind[s.k]
                          AND (_answer_wake[s.k] IS NULL OR r.wake_id = _answer_wake[s.k])
                          AND (r.expires_at IS NULL OR r.expires_at > clock())) THEN 'not_pending'
                    WHEN i.name <> _start_name[s.k] THEN 'taken'
                    WHEN i.instance_id IS NULL AND _start_name[s.k] IS NOT NULL THEN 'over_quota'
                    WHEN i.instance_id IS NULL AND _message[s.k] IS NOT NULL THEN 'unknown'
                    WHEN j.journal_id IS NULL THEN 'raced'
                END AS outcome
            FROM unnest(_session) WITH ORDINALITY AS s (session_id, k)
            LEFT JOIN journals j ON j.session_id = s.session_id
            LEFT JOIN instances i ON i.instance_id = s.session_id
            LEFT JOIN LATERAL (
                SELECT coalesce(
                    (SELECT o.seq FROM journal_entries o WHERE o.journal_id = j.journal_id AND o.event_id = _event[s.k]),
                    CASE WHEN j.base_id IS NOT NULL THEN find_inherited_event(j.journal_id, _event[s.k]) END) AS seq
                WHERE _event[s.k] IS NOT NULL) e ON true
            WHERE (_round IS NULL OR _round[s.k] = this) AND (_only IS NULL OR s.k = ANY (_only))
            ORDER BY s.k) a;
        CONTINUE WHEN at IS NULL;
        IF 'raced' = ANY (found) THEN
            PERFORM refuse(); -- the journal, or the instance, was deleted in this moment
        END IF;
        waking := ARRAY (
            SELECT CASE WHEN p.asleep AND p.outcome IS NULL AND _input[p.k] AND _message[p.k] IS NOT NULL
                        THEN _session[p.k] END
            FROM unnest(at, found, sleeping) WITH ORDINALITY AS p (k, outcome, asleep, x) ORDER BY p.x);
        -- The quota and the number of unread messages are those of messages; so is the text.
        accepted := ARRAY (
            SELECT p.x FROM unnest(at, found, waking) WITH ORDINALITY AS p (k, outcome, waking, x)
            WHERE p.outcome IS NULL AND p.waking IS NULL AND _message[p.k] IS NOT NULL ORDER BY p.x);
        IF accepted <> '{}' THEN
            SELECT array_agg(CASE m.delivery WHEN 'finished' THEN 'closed' WHEN 'delivered' THEN NULL
                             ELSE coalesce(m.delivery, 'raced') END ORDER BY a.x)
            INTO refused
            FROM unnest(accepted) WITH ORDINALITY AS a (x, n)
            LEFT JOIN send_messages_1(
                ARRAY (SELECT _session[at[a.x]] FROM unnest(accepted) AS a (x)),
                array_fill(NULL::text, ARRAY[cardinality(accepted)]),
                ARRAY (
                    SELECT replace(
                        replace(_message[at[a.x]], '"$SEQ"', numbers[a.x]::text), '"$ASLEEP"', sleeping[a.x]::text)
                    FROM unnest(accepted) AS a (x)),
                array_fill(0::float8, ARRAY[cardinality(accepted)]),
                array_fill(NULL::bigint, ARRAY[cardinality(accepted)]),
                array_fill(NULL::bigint, ARRAY[cardinality(accepted)]),
                ARRAY (
                    SELECT CASE WHEN _sender[at[a.x]] IS NULL THEN _unread_limit[at[a.x]] END
                    FROM unnest(accepted) AS a (x))) m ON m.n = a.n;
            IF 'raced' = ANY (refused) THEN
                PERFORM refuse();
            END IF;
            FOR x IN 1 .. cardinality(accepted) LOOP
                found[accepted[x]] := refused[x];
            END LOOP;
        END IF;
        WITH passed AS MATERIALIZED (
            SELECT p.k, p.id, p.seq FROM unnest(at, ids, found, numbers) AS p (k, id, outcome, seq) WHERE p.outcome IS NULL
        ), entered AS (
            INSERT INTO journal_entries (journal_id, seq, recorded_at, is_input, kind, event_id, wake_id, payload)
            SELECT p.id, p.seq, (SELECT clock()), _input[p.k], _entry_kind[p.k], _event[p.k], _wake[p.k], _entry[p.k]
            FROM passed p WHERE _entry_kind[p.k] IS NOT NULL
        ), answered AS (
            DELETE FROM journal_requests r USING passed p
            WHERE r.journal_id = p.id AND r.request_id = _answer[p.k]
        ), dropped AS (
            DELETE FROM journal_requests r USING passed p WHERE r.journal_id = p.id AND _drops[p.k]
        ), forgotten AS (
            DELETE FROM journal_revisits r USING passed p WHERE r.journal_id = p.id AND _drops[p.k]
        )
        UPDATE journals j
        SET last_seq = p.seq, size = j.size + coalesce(octet_length(_entry[p.k]), 0),
            dropped_seq = CASE WHEN _drops[p.k] THEN p.seq ELSE j.dropped_seq END,
            closed = j.closed OR coalesce(_closes[p.k], false), updated_at = clock()
        FROM passed p WHERE j.journal_id = p.id;
        places := places || at;
        outcomes := outcomes || found;
        seqs := seqs || numbers;
        journal_ids := journal_ids || ids;
        woken := woken || ARRAY (SELECT w.id IS NOT NULL FROM unnest(waking) WITH ORDINALITY AS w (id, x) ORDER BY w.x);
        IF true = ANY (woken) THEN -- in this round or before
            holders := coalesce(holders, array_fill(NULL::text, ARRAY[cardinality(woken) - cardinality(at)]))
                || wake_items_1(waking);
        END IF;
    END LOOP;
    created := ARRAY (
        SELECT coalesce(p.outcome IS NULL AND p.seq = 1 AND p.id = ANY (fresh), false)
        FROM unnest(outcomes, seqs, journal_ids) WITH ORDINALITY AS p (outcome, seq, id, x) ORDER BY p.x);
    IF fresh IS NOT NULL THEN
        -- What was started for an element that a limit has refused since.
        WITH empty AS (
            DELETE FROM journals j WHERE j.journal_id = ANY (fresh) AND j.last_seq = 0 RETURNING j.session_id
        ), unsent AS (
            DELETE FROM orchestrator_queue q USING empty e WHERE q.instance_id = e.session_id
        )
        DELETE FROM instances i USING empty e
        WHERE i.instance_id = e.session_id AND i.birth = ANY (_start_birth);
    END IF;
END $$;

-- For the release before, which appends while items sleep, too.
CREATE OR REPLACE FUNCTION append_journals_1(
    _session text[], _kind text[], _entry_kind text[], _entry text[], _event text[], _wake text[], _input boolean[],
    _message text[], _unread_limit bigint[],
    _start_name text[] = NULL, _start text[] = NULL, _start_birth text[] = NULL, _start_version text[] = NULL,
    _start_journal bigint[] = NULL, _start_parent text[] = NULL,
    _answer text[] = NULL, _answer_kind text[] = NULL, _answer_wake text[] = NULL, _drops boolean[] = NULL,
    _closes boolean[] = NULL, _sender text[] = NULL,
    _round bigint[] = NULL, _rounds bigint = 1, _only bigint[] = NULL,
    OUT places bigint[], OUT outcomes text[], OUT seqs bigint[], OUT journal_ids bigint[], OUT created boolean[]
) LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    woken boolean[];
    holders text[];
BEGIN
    SELECT a.places, a.outcomes, a.seqs, a.journal_ids, a.created, a.woken, a.holders
    INTO places, outcomes, seqs, journal_ids, created, woken, holders
    FROM append_journals_2(_session, _kind, _entry_kind, _entry, _event, _wake, _input, _message,
        _unread_limit, _start_name, _start, _start_birth, _start_version, _start_journal, _start_parent, _answer,
        _answer_kind, _answer_wake, _drops, _closes, _sender, _round, _rounds, _only) a;
    -- Its own hints say that there are messages, and no work items. In the transaction: its clients are few, and soon gone.
    PERFORM pg_notify('affinity_' || left(encode(sha256(convert_to(
        concat_ws(' ', current_schema, w.holder), 'UTF8')), 'hex'), 40), 'w')
    FROM (SELECT DISTINCT u.holder FROM unnest(woken, holders) AS u (woken, holder) WHERE u.woken) w;
END $$;

-- An item is gone with its execution and with its instance, also when the release before ends them. It is removed before
-- the statement that ends an instance empties its queue, and an append that wakes it meanwhile has committed by then.
CREATE OR REPLACE FUNCTION record_ended_execution() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO ended_executions AS e (instance_id, execution_id, is_last, ended_at)
    VALUES (NEW.instance_id, OLD.execution_id, NEW.execution_id = OLD.execution_id, NEW.updated_at)
    ON CONFLICT (instance_id, execution_id) DO UPDATE SET is_last = excluded.is_last, ended_at = excluded.ended_at;
    DELETE FROM asleep_items WHERE instance_id = NEW.instance_id AND asleep;
    RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION forget_ended_executions() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    DELETE FROM ended_executions WHERE instance_id = OLD.instance_id;
    DELETE FROM instance_sizes WHERE instance_id = OLD.instance_id;
    DELETE FROM message_keys WHERE instance_id = OLD.instance_id;
    DELETE FROM asleep_items WHERE instance_id = OLD.instance_id;
    RETURN NULL;
END $$;

-- To replace a function removes its settings, and keeps who may call it.
DO $do$
DECLARE
    function regprocedure;
BEGIN
    FOR function IN
        SELECT p.oid FROM pg_proc p
        WHERE p.pronamespace = current_schema::regnamespace AND p.proname IN (
            'append_journals_1', 'append_journals_2', 'record_ended_execution', 'forget_ended_executions')
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', function, current_schema);
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', function);
    END LOOP;
END $do$;
