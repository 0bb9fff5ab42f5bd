-- Lineage of journals: see `JournalBirth` in affinity/journal.py.

-- home: the session on whose lease the wakes run; NULL: its own. lineage, operator, extras: how it was made from others.
ALTER TABLE journals ADD COLUMN home text COLLATE "C", ADD COLUMN lineage text COLLATE "C",
    ADD COLUMN operator text COLLATE "C" NOT NULL DEFAULT '', ADD COLUMN extras text NOT NULL DEFAULT '{}';

-- The entry that a merge has copied.
ALTER TABLE journal_entries ADD COLUMN origin_id bigint, ADD COLUMN origin_seq bigint;
CREATE INDEX journal_entries_origin ON journal_entries (origin_id, origin_seq) WHERE origin_id IS NOT NULL;

CREATE FUNCTION birth_parents(_birth jsonb) RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY (
        SELECT p.id::bigint FROM jsonb_array_elements_text(_birth -> 'parents') WITH ORDINALITY AS p (id, n) ORDER BY p.n)
$$;

-- Why a birth is not applied; NULL: nothing is in its way.
CREATE FUNCTION birth_refusal_1(_birth jsonb) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    _session text := _birth ->> 'session_id';
    _parents bigint[] := birth_parents(_birth);
    _base bigint := (_birth ->> 'base_id')::bigint;
    _base_seq bigint := (_birth ->> 'base_seq')::bigint;
    _merged bigint := (_birth ->> 'merged_id')::bigint;
    _merged_seq bigint := (_birth ->> 'merged_seq')::bigint;
    base journals;
    merged journals;
    same boolean;
BEGIN
    SELECT coalesce(j.lineage = _birth ->> 'lineage', false) AND j.operator = _birth ->> 'operator' AND _parents = ARRAY (
        SELECT p.parent_id FROM journal_parents p WHERE p.journal_id = j.journal_id ORDER BY p.position)
    INTO same FROM journals j WHERE j.session_id = _session;
    IF FOUND THEN
        RETURN CASE WHEN same THEN 'repeated' ELSE 'taken' END;
    END IF;
    IF EXISTS (SELECT FROM instances i WHERE i.instance_id = _session)
       OR EXISTS (SELECT FROM session_states r WHERE r.session_id = _session)
       OR EXISTS (SELECT FROM journals j WHERE j.journal_id = (_birth ->> 'journal_id')::bigint) THEN
        RETURN 'taken';
    END IF;
    SELECT * INTO base FROM journals j WHERE j.journal_id = _base AND j.session_id IS NOT NULL;
    SELECT * INTO merged FROM journals j WHERE j.journal_id = _merged AND j.session_id IS NOT NULL;
    IF _base IS NOT NULL AND base.journal_id IS NULL OR _merged IS NOT NULL AND merged.journal_id IS NULL
       OR EXISTS (
           SELECT FROM unnest(_parents) AS p (id) WHERE NOT EXISTS (SELECT FROM journals j WHERE j.journal_id = p.id)) THEN
        RETURN 'unknown';
    END IF;
    IF coalesce(_base_seq > base.last_seq OR _base_seq < base.first_seq - 1, false)
       OR coalesce(_merged_seq > merged.last_seq OR _merged_seq < merged.first_seq - 1, false)
       OR coalesce((_birth ->> 'copies_state')::boolean AND _birth ->> 'state' IS NULL AND _base_seq < base.last_seq, false)
    THEN
        RETURN 'beyond';
    END IF;
    RETURN NULL;
END $$;

-- Whether the births of a wake can be applied, and the session on whose lease it ran has no greater epoch.
CREATE FUNCTION births_fit_1(_births text, _home text, _home_epoch bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT NOT EXISTS (SELECT FROM sessions s WHERE s.session_id = _home AND s.epoch > _home_epoch)
        AND NOT EXISTS (
            SELECT FROM jsonb_array_elements(coalesce(_births, '[]')::jsonb) AS b (birth)
            WHERE coalesce(birth_refusal_1(b.birth), 'repeated') <> 'repeated')
$$;

-- Creates a journal from others: see `JournalBirth`. With the rights of the role that migrated, as append_journals_1.
--
-- Rows are locked in the order of all verbs: instances, sessions, session_states, journals.
CREATE FUNCTION bear_journal_1(_birth jsonb, OUT outcome text, OUT born_id bigint, OUT born_seq bigint)
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    _session text := _birth ->> 'session_id';
    _id bigint := (_birth ->> 'journal_id')::bigint;
    _parents bigint[] := birth_parents(_birth);
    _base bigint := (_birth ->> 'base_id')::bigint;
    _base_seq bigint := (_birth ->> 'base_seq')::bigint;
    _merged bigint := (_birth ->> 'merged_id')::bigint;
    _merged_seq bigint := (_birth ->> 'merged_seq')::bigint;
    _now timestamptz := clock();
    base journals;
    merged journals;
    copied bigint := 0;
BEGIN
    outcome := birth_refusal_1(_birth);
    IF outcome IS NOT NULL THEN
        SELECT j.journal_id, j.last_seq INTO born_id, born_seq FROM journals j WHERE j.session_id = _session;
        RETURN;
    END IF;
    IF EXISTS (
        SELECT FROM create_instances_1(
            ARRAY[_session], ARRAY[_birth ->> 'birth'], ARRAY[_birth ->> 'name'], ARRAY[_birth ->> 'version'],
            ARRAY[_birth ->> 'start'], ARRAY[NULL::text], ARRAY[NULL::text], ARRAY[0::float8], ARRAY[NULL::text],
            ARRAY[NULL::text], ARRAY[_session]) c
        WHERE c.quota IS NOT NULL) THEN
        outcome := 'over_quota';
        RETURN;
    END IF;
    SELECT * INTO base FROM journals j WHERE j.journal_id = _base;
    SELECT * INTO merged FROM journals j WHERE j.journal_id = _merged;
    IF (_birth ->> 'copies_state')::boolean OR _birth ->> 'state' IS NOT NULL THEN
        INSERT INTO sessions AS s (session_id, worker_id, incarnation, epoch, locked_until, touched_at, claimed_at)
        VALUES (_session, '', '', nextval('epochs'), _now, _now, _now)
        ON CONFLICT (session_id) DO UPDATE SET epoch = excluded.epoch;
        INSERT INTO session_states (session_id, state, encoding, schema_version, kind, name, labels, message_count,
            participants, version, birth, created_at, updated_at)
        SELECT _session, r.state, r.encoding, r.schema_version, r.kind, r.name, r.labels, r.message_count,
            r.participants, 1, gen_random_uuid()::text, _now, _now
        FROM session_states r WHERE _birth ->> 'state' IS NULL AND r.session_id = base.session_id
        UNION ALL
        SELECT _session, decode(_birth ->> 'state', 'base64'), _birth ->> 'encoding',
            (_birth ->> 'schema_version')::bigint, _birth ->> 'state_kind', _birth ->> 'state_name', _birth -> 'labels',
            (_birth ->> 'message_count')::bigint, _birth -> 'participants', 1, gen_random_uuid()::text, _now, _now
        WHERE _birth ->> 'state' IS NOT NULL;
    END IF;
    -- They stay until the commit, as they are needed here.
    PERFORM FROM journals j WHERE j.journal_id = ANY (_parents || _base || _merged) ORDER BY j.session_id FOR KEY SHARE;
    IF _base IS NOT NULL AND NOT EXISTS (SELECT FROM journals j WHERE j.journal_id = _base AND j.session_id IS NOT NULL)
       OR _merged IS NOT NULL
          AND NOT EXISTS (SELECT FROM journals j WHERE j.journal_id = _merged AND j.session_id IS NOT NULL) THEN
        RAISE serialization_failure USING MESSAGE = 'the journal was deleted in this moment';
    END IF;
    -- A wake that has committed since the journal was read has changed the state that was copied.
    IF EXISTS (
        SELECT FROM journals j WHERE j.journal_id = _base
          AND (j.first_seq, j.processed, j.ended_wake, j.ended_attempt)
              IS DISTINCT FROM (base.first_seq, base.processed, base.ended_wake, base.ended_attempt)) THEN
        RAISE serialization_failure USING MESSAGE = 'the journal has changed in this moment';
    END IF;
    _base_seq := coalesce(_base_seq, base.last_seq);
    _merged_seq := coalesce(_merged_seq, merged.last_seq);
    born_id := _id;
    born_seq := coalesce(_base_seq, 0);
    INSERT INTO journals (journal_id, session_id, kind, parent, first_seq, last_seq, processed, base_id, base_seq, home,
        lineage, operator, extras, oldest_at, created_at, updated_at)
    VALUES (_id, _session, _birth ->> 'kind', _birth ->> 'parent',
        coalesce((SELECT j.first_seq FROM journals j WHERE j.journal_id = _base), 1), born_seq,
        least(base.processed, _base_seq, born_seq), _base, _base_seq, _birth ->> 'home', _birth ->> 'lineage',
        _birth ->> 'operator', _birth ->> 'extras', _now, _now, _now);
    INSERT INTO journal_parents (journal_id, position, parent_id)
    SELECT _id, p.n, p.id FROM unnest(_parents) WITH ORDINALITY AS p (id, n);
    IF _merged IS NOT NULL THEN
        -- Of each part that both have, the longer one's end; then what neither has copied from the other.
        WITH left_part AS MATERIALIZED (SELECT s.journal_id, s.low, s.high FROM journal_segments(_id) s),
        fresh AS (
            SELECT e.*, coalesce(e.origin_id, e.journal_id) AS from_id, coalesce(e.origin_seq, e.seq) AS from_seq
            FROM journal_segments(_merged) r
            LEFT JOIN left_part l USING (journal_id)
            JOIN journal_entries e ON e.journal_id = r.journal_id AND e.seq > greatest(r.low, l.high)
                                  AND e.seq <= least(r.high, _merged_seq)
        )
        INSERT INTO journal_entries (journal_id, seq, recorded_at, is_input, kind, event_id, wake_id, payload, origin_id,
            origin_seq)
        SELECT _id, born_seq + row_number() OVER (ORDER BY f.seq), f.recorded_at,
            f.is_input AND f.seq > merged.processed, f.kind,
            CASE WHEN NOT EXISTS (
                SELECT FROM left_part l JOIN journal_entries o ON o.journal_id = l.journal_id AND o.event_id = f.event_id
                WHERE o.seq > l.low AND o.seq <= l.high) THEN f.event_id END,
            f.wake_id, f.payload, f.from_id, f.from_seq
        FROM fresh f
        WHERE NOT EXISTS (
                SELECT FROM left_part l
                WHERE l.journal_id = f.from_id AND f.from_seq > l.low AND f.from_seq <= l.high)
          AND NOT EXISTS (
                SELECT FROM journal_entries o JOIN left_part l ON l.journal_id = o.journal_id
                WHERE o.origin_id = f.from_id AND o.origin_seq = f.from_seq AND o.seq > l.low AND o.seq <= l.high);
        GET DIAGNOSTICS copied = ROW_COUNT;
        born_seq := born_seq + copied;
    END IF;
    INSERT INTO journal_entries (journal_id, seq, recorded_at, is_input, kind, event_id, wake_id, payload)
    SELECT _id, born_seq + e.n, coalesce((e.entry ->> 5)::timestamptz, _now), (e.entry ->> 4)::boolean, e.entry ->> 0,
        e.entry ->> 2, e.entry ->> 3, e.entry ->> 1
    FROM jsonb_array_elements(_birth -> 'entries') WITH ORDINALITY AS e (entry, n);
    GET DIAGNOSTICS copied = ROW_COUNT;
    born_seq := born_seq + copied;
    UPDATE journals j SET last_seq = born_seq, size = (
        SELECT coalesce(sum(octet_length(e.payload)), 0) FROM journal_entries e WHERE e.journal_id = _id)
    WHERE j.journal_id = _id;
    IF _birth ->> 'message' IS NOT NULL AND EXISTS (
        SELECT FROM journals j CROSS JOIN LATERAL find_entries_1(
            _id, j.processed, born_seq + 1, '{}', NULL, NULL, true, false, 1)
        WHERE j.journal_id = _id) THEN
        PERFORM FROM send_messages_1(
            ARRAY[_session], ARRAY[NULL::text], ARRAY[replace(_birth ->> 'message', '"$SEQ"', born_seq::text)],
            ARRAY[0::float8], ARRAY[NULL::bigint], ARRAY[NULL::bigint], ARRAY[NULL::bigint]);
    END IF;
    outcome := 'created';
END $$;

-- The births of wakes, behind what these have added to their journals, which are in the same order; see `JournalWrite`. With
-- `_only`, those of other writes are left out.
CREATE FUNCTION bear_journals_1(_births text[], _home text[], _home_epoch bigint[], _only bigint[] = NULL) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM sessions s WHERE s.session_id = ANY (_home) ORDER BY s.session_id FOR NO KEY UPDATE;
    IF EXISTS (
        SELECT FROM unnest(_home) WITH ORDINALITY AS h (session_id, n) JOIN sessions s USING (session_id)
        WHERE s.epoch > _home_epoch[h.n] AND (_only IS NULL OR h.n = ANY (_only)))
       OR EXISTS (
        SELECT FROM unnest(_births) WITH ORDINALITY AS w (births, n)
        CROSS JOIN LATERAL jsonb_array_elements(w.births::jsonb) AS b (birth)
        CROSS JOIN LATERAL bear_journal_1(b.birth) AS r
        WHERE w.births IS NOT NULL AND (_only IS NULL OR w.n = ANY (_only)) AND r.outcome NOT IN ('created', 'repeated')) THEN
        PERFORM refuse();
    END IF;
END $$;

-- Clients and workers create journals by it, and no other role.
DO $do$
DECLARE
    function regprocedure;
BEGIN
    SELECT p.oid::regprocedure INTO function FROM pg_proc p
    WHERE p.proname = 'bear_journal_1' AND p.pronamespace = current_schema::regnamespace;
    EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', function, current_schema);
    EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', function);
END $do$;
