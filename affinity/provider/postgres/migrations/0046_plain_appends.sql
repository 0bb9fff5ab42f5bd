-- Nearly all appends are inputs of journals that are there, each named once: two statements do them. All else is done as
-- before, by append_other_journals_1.
DO $do$
DECLARE
    function regprocedure;
BEGIN
    SELECT p.oid::regprocedure INTO function FROM pg_proc p
    WHERE p.proname = 'append_journals_1' AND p.pronamespace = current_schema::regnamespace;
    EXECUTE replace(pg_get_functiondef(function), 'append_journals_1', 'append_other_journals_1');
    EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC',
        replace(function::text, 'append_journals_1', 'append_other_journals_1'));
END $do$;

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
    most quotas;
BEGIN
    SELECT * INTO most FROM quotas;
    IF _start_name IS NOT NULL OR _closes IS NOT NULL OR _round IS NOT NULL OR _only IS NOT NULL
       OR most.instance_bytes IS NOT NULL THEN
        SELECT a.places, a.outcomes, a.seqs, a.journal_ids, a.created
        INTO places, outcomes, seqs, journal_ids, created
        FROM append_other_journals_1(_session, _kind, _entry_kind, _entry, _event, _wake, _input, _message,
            _unread_limit, _start_name, _start, _start_birth, _start_version, _start_journal, _start_parent, _answer,
            _answer_kind, _answer_wake, _drops, _closes, _sender, _round, _rounds, _only) a;
        RETURN;
    END IF;
    PERFORM FROM journals j WHERE j.session_id = ANY (_session) ORDER BY j.session_id FOR NO KEY UPDATE;
    WITH judged AS MATERIALIZED (
        SELECT s.session_id, s.k, j.journal_id, r.route,
            coalesce(e.seq, j.last_seq + (_entry_kind[s.k] IS NOT NULL)::int) AS seq,
            CASE
                WHEN j.journal_id IS NULL THEN 'unknown'
                WHEN j.kind <> _kind[s.k] THEN 'other_kind'
                WHEN e.seq IS NOT NULL THEN 'repeated'
                WHEN j.closed OR i.instance_id IS NOT NULL AND r.route IS NULL THEN 'closed'
                WHEN _message[s.k] IS NULL THEN NULL
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
    ), sent AS (
        INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
        SELECT p.session_id, p.route, (SELECT clock()), replace(_message[p.k], '"$SEQ"', p.seq::text)
        FROM judged p WHERE p.outcome IS NULL AND _message[p.k] IS NOT NULL ORDER BY p.k
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
    SELECT array_agg(p.k), array_agg(p.outcome), array_agg(p.seq), array_agg(p.journal_id), array_agg(false)
    INTO places, outcomes, seqs, journal_ids, created
    FROM judged p;
END $$;

-- To replace a function removes its settings, and keeps who may call it.
DO $do$
DECLARE
    function regprocedure;
BEGIN
    SELECT p.oid::regprocedure INTO function FROM pg_proc p
    WHERE p.proname = 'append_journals_1' AND p.pronamespace = current_schema::regnamespace;
    EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', function, current_schema);
END $do$;
