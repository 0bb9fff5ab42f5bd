-- Journals of sessions: see affinity/conversation/journal.py.

-- session_id: NULL when it was deleted, and other journals continue it. base_id, base_seq: the journal that it continues, up
-- to that number. first_seq: the first entry that is kept. size: bytes of the payloads of its own entries. dropped_seq: the
-- last entry that dropped requests. ended_wake, ended_attempt: the last attempt whose stream has ended. oldest_at: no
-- entry of its own is older. home: the session on whose lease the wakes run; NULL: its own. lineage, operator, extras: how it
-- was made from others (`JournalCreation`). title, owner, labels: its `Description`. All that changes
-- with each entry is in no index.
CREATE TABLE journals (
    journal_id bigint PRIMARY KEY,
    session_id text COLLATE "C",
    kind text COLLATE "C" NOT NULL,
    parent text COLLATE "C",
    parent_journal bigint, -- of the parent as it was when it created this one
    home text COLLATE "C",
    lineage text COLLATE "C",
    operator text COLLATE "C" NOT NULL DEFAULT '',
    extras text NOT NULL DEFAULT '{}',
    title text COLLATE "C",
    owner text COLLATE "C",
    labels jsonb NOT NULL DEFAULT '{}',
    base_id bigint,
    base_seq bigint,
    first_seq bigint NOT NULL DEFAULT 1,
    last_seq bigint NOT NULL DEFAULT 0,
    processed bigint NOT NULL DEFAULT 0,
    dropped_seq bigint NOT NULL DEFAULT 0,
    closed boolean NOT NULL DEFAULT false,
    size bigint NOT NULL DEFAULT 0,
    ended_wake text COLLATE "C",
    ended_attempt bigint,
    -- What entries have used that were removed, by writer: the number of these entries with a usage, and its sum by name:
    -- {"WRITER": [3, {"tokens": 30}]}. A writer is the beginning that the ids of the wakes of one instance share.
    used jsonb NOT NULL DEFAULT '{}',
    oldest_at timestamptz NOT NULL,
    -- Retention found nothing to remove, kept_looks times in a row, and looks again at kept_until.
    kept_until timestamptz,
    kept_looks smallint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    -- Retention finds journals that are over a bound by these. A class grows by one for a quarter more. So the indexed value
    -- changes seldom as a journal grows, and never in a journal of up to 64 entries and 64 KiB.
    entries_class smallint GENERATED ALWAYS AS ((ln(greatest(last_seq - first_seq + 1, 64)::float8) * 4)::smallint) STORED,
    size_class smallint GENERATED ALWAYS AS ((ln(greatest(size, 65536)::float8) * 4)::smallint) STORED
) WITH (fillfactor = 60, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);
CREATE UNIQUE INDEX journals_session ON journals (session_id);
CREATE INDEX journals_created ON journals (created_at, session_id) WHERE session_id IS NOT NULL;
CREATE INDEX journals_kind ON journals (kind, created_at, session_id) WHERE session_id IS NOT NULL;
CREATE INDEX journals_parent ON journals (parent, created_at, session_id) WHERE parent IS NOT NULL AND session_id IS NOT NULL;
CREATE INDEX journals_owner ON journals (owner, created_at, session_id) WHERE owner IS NOT NULL AND session_id IS NOT NULL;
CREATE INDEX journals_labels ON journals USING gin (labels jsonb_path_ops) WHERE labels <> '{}';
CREATE INDEX journals_base ON journals (base_id, base_seq) WHERE base_id IS NOT NULL;
CREATE INDEX journals_oldest ON journals (oldest_at, journal_id) WHERE kept_until IS NULL AND session_id IS NOT NULL;
CREATE INDEX journals_entries_class ON journals (entries_class, journal_id)
    WHERE kept_until IS NULL AND session_id IS NOT NULL;
CREATE INDEX journals_size_class ON journals (size_class, journal_id) WHERE kept_until IS NULL AND session_id IS NOT NULL;
CREATE INDEX journals_kept ON journals (kept_until) WHERE kept_until IS NOT NULL;

-- origin_id, origin_seq: the entry that a merge has copied. request_seq: of an answer, the seq of its request.
CREATE TABLE journal_entries (
    journal_id bigint NOT NULL,
    seq bigint NOT NULL,
    recorded_at timestamptz NOT NULL,
    is_input boolean NOT NULL,
    kind text COLLATE "C" NOT NULL,
    event_id text COLLATE "C",
    wake_id text COLLATE "C",
    payload text NOT NULL,
    origin_id bigint,
    origin_seq bigint,
    request_seq bigint,
    PRIMARY KEY (journal_id, seq)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE UNIQUE INDEX journal_entries_event ON journal_entries (journal_id, event_id) WHERE event_id IS NOT NULL;
CREATE INDEX journal_entries_kind ON journal_entries (journal_id, kind, seq);
CREATE INDEX journal_entries_wake ON journal_entries (journal_id, wake_id, seq) WHERE wake_id IS NOT NULL;
CREATE INDEX journal_entries_inputs ON journal_entries (journal_id, seq) WHERE is_input;
CREATE INDEX journal_entries_origin ON journal_entries (origin_id, origin_seq) WHERE origin_id IS NOT NULL;

-- How attempts of wakes have ended (`JournalWake`). seq: the last entry. base, processed: the watermark
-- before and behind it, which only grows: so the key has them in the order of their entries.
CREATE TABLE journal_wakes (
    journal_id bigint NOT NULL,
    processed bigint NOT NULL,
    seq bigint NOT NULL,
    base bigint NOT NULL,
    read bigint NOT NULL,
    attempt bigint NOT NULL,
    outcome text COLLATE "C" NOT NULL,
    reason text COLLATE "C" NOT NULL,
    wake_id text COLLATE "C" NOT NULL,
    error text,
    PRIMARY KEY (journal_id, processed, seq)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);

-- seq: the first entry of the wake that made it. place: among the requests that were added with it.
CREATE TABLE journal_requests (
    journal_id bigint NOT NULL,
    request_id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    wake_id text COLLATE "C",
    seq bigint NOT NULL,
    place bigint NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    payload text NOT NULL,
    PRIMARY KEY (journal_id, request_id)
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX journal_requests_created ON journal_requests (created_at, journal_id, place, request_id);
CREATE INDEX journal_requests_expiry
    ON journal_requests (coalesce(expires_at, '9999-01-01 00:00:00+00'), journal_id, place, request_id);

CREATE TABLE journal_revisits (
    journal_id bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    due_at timestamptz NOT NULL,
    priority bigint NOT NULL,
    reason text NOT NULL,
    note text NOT NULL,
    wake_id text COLLATE "C",
    PRIMARY KEY (journal_id, key)
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);

-- child: session.
CREATE TABLE journal_delegations (
    journal_id bigint NOT NULL,
    delegation_id text COLLATE "C" NOT NULL,
    child text COLLATE "C" NOT NULL,
    PRIMARY KEY (journal_id, delegation_id)
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX journal_delegations_child ON journal_delegations (child);

-- result: NULL while it runs.
CREATE TABLE journal_steps (
    journal_id bigint NOT NULL,
    wake_id text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    arguments text NOT NULL,
    result text,
    PRIMARY KEY (journal_id, wake_id, key)
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.05);

-- Provisional parts, which live for seconds. Not logged: a crash of the server may remove them, and their transactions do
-- not wait for the disk.
CREATE UNLOGGED TABLE journal_streams (
    journal_id bigint NOT NULL,
    wake_id text COLLATE "C" NOT NULL,
    attempt bigint NOT NULL,
    number bigint NOT NULL,
    payload text NOT NULL,
    PRIMARY KEY (journal_id, wake_id, attempt, number)
) WITH (autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- A journal that others name here is kept, without its entries, when it is deleted: the way to its own parents.
CREATE TABLE journal_parents (
    journal_id bigint NOT NULL,
    position bigint NOT NULL,
    parent_id bigint NOT NULL,
    PRIMARY KEY (journal_id, position)
);
CREATE INDEX journal_parents_parent ON journal_parents (parent_id);

-- Reading.
-- The journals whose entries a journal has, the nearest first, and which of their own entries these are.
CREATE FUNCTION journal_segments(_journal bigint)
RETURNS TABLE (journal_id bigint, low bigint, high bigint, depth bigint) LANGUAGE sql STABLE AS $$
    WITH RECURSIVE segment (journal_id, base_id, base_seq, low, high, depth) AS (
        SELECT j.journal_id, j.base_id, j.base_seq, greatest(j.base_seq, j.first_seq - 1, 0), j.last_seq, 1::bigint
        FROM journals j WHERE j.journal_id = _journal
        UNION ALL
        SELECT b.journal_id, b.base_id, b.base_seq, greatest(b.base_seq, b.first_seq - 1, 0), least(s.high, s.base_seq),
            s.depth + 1
        FROM segment s JOIN journals b ON b.journal_id = s.base_id
    )
    SELECT s.journal_id, s.low, s.high, s.depth FROM segment s WHERE s.low < s.high;
$$;

-- The numbers of entries that meet all conditions, in the given order, and the journals whose own they are. One segment
-- after the other, each by the index of the condition that the fewest entries meet.
CREATE FUNCTION find_entries(_journal bigint, _after bigint, _before bigint, _kinds text[], _wake text, _event text,
    _pending boolean, _newest boolean, _limit bigint)
RETURNS TABLE (owner bigint, seq bigint) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    any_kind boolean := cardinality(_kinds) = 0;
    part record;
    rest bigint := _limit;
    added bigint;
BEGIN
    FOR part IN
        SELECT s.journal_id AS id, greatest(s.low, _after) AS low, least(s.high, _before - 1) AS high
        FROM journal_segments(_journal) s
        WHERE s.high > _after AND s.low < _before - 1
        ORDER BY CASE WHEN _newest THEN s.depth ELSE -s.depth END
    LOOP
        IF _event IS NOT NULL THEN
            RETURN QUERY SELECT w.journal_id, w.seq
            FROM (SELECT * FROM journal_entries e WHERE e.journal_id = part.id AND e.event_id = _event OFFSET 0) w
            WHERE w.seq > part.low AND w.seq <= part.high AND (_wake IS NULL OR w.wake_id = _wake)
              AND (any_kind OR w.kind = ANY (_kinds)) AND (w.is_input OR NOT _pending)
            LIMIT rest;
        ELSIF _wake IS NOT NULL THEN
            RETURN QUERY SELECT w.journal_id, w.seq
            FROM (SELECT * FROM journal_entries e WHERE e.journal_id = part.id AND e.wake_id = _wake OFFSET 0) w
            WHERE w.seq > part.low AND w.seq <= part.high AND (any_kind OR w.kind = ANY (_kinds))
              AND (w.is_input OR NOT _pending)
            ORDER BY CASE WHEN _newest THEN -w.seq ELSE w.seq END LIMIT rest;
        ELSIF _pending AND _newest THEN
            RETURN QUERY SELECT part.id, w.seq FROM (
                SELECT e.seq FROM journal_entries e
                WHERE e.journal_id = part.id AND e.is_input AND e.seq > part.low AND e.seq <= part.high
                ORDER BY e.seq DESC OFFSET 0) w
            WHERE any_kind OR (
                SELECT e.kind FROM journal_entries e WHERE e.journal_id = part.id AND e.seq = w.seq) = ANY (_kinds)
            LIMIT rest;
        ELSIF _pending THEN
            RETURN QUERY SELECT part.id, w.seq FROM (
                SELECT e.seq FROM journal_entries e
                WHERE e.journal_id = part.id AND e.is_input AND e.seq > part.low AND e.seq <= part.high
                ORDER BY e.seq OFFSET 0) w
            WHERE any_kind OR (
                SELECT e.kind FROM journal_entries e WHERE e.journal_id = part.id AND e.seq = w.seq) = ANY (_kinds)
            LIMIT rest;
        ELSIF NOT any_kind AND _newest THEN
            RETURN QUERY SELECT part.id, k.seq
            FROM (SELECT DISTINCT u.kind FROM unnest(_kinds) AS u (kind)) n CROSS JOIN LATERAL (
                SELECT e.seq FROM journal_entries e
                WHERE e.journal_id = part.id AND e.kind = n.kind AND e.seq > part.low AND e.seq <= part.high
                ORDER BY e.seq DESC LIMIT rest) k
            ORDER BY k.seq DESC LIMIT rest;
        ELSIF NOT any_kind THEN
            RETURN QUERY SELECT part.id, k.seq
            FROM (SELECT DISTINCT u.kind FROM unnest(_kinds) AS u (kind)) n CROSS JOIN LATERAL (
                SELECT e.seq FROM journal_entries e
                WHERE e.journal_id = part.id AND e.kind = n.kind AND e.seq > part.low AND e.seq <= part.high
                ORDER BY e.seq LIMIT rest) k
            ORDER BY k.seq LIMIT rest;
        ELSIF _newest THEN
            RETURN QUERY SELECT e.journal_id, e.seq FROM journal_entries e
            WHERE e.journal_id = part.id AND e.seq > part.low AND e.seq <= part.high
            ORDER BY e.seq DESC LIMIT rest;
        ELSE
            RETURN QUERY SELECT e.journal_id, e.seq FROM journal_entries e
            WHERE e.journal_id = part.id AND e.seq > part.low AND e.seq <= part.high
            ORDER BY e.seq LIMIT rest;
        END IF;
        GET DIAGNOSTICS added = ROW_COUNT;
        rest := rest - added;
        EXIT WHEN rest <= 0;
    END LOOP;
END $$;

-- The number of the entry with an event id in the journals that a journal continues.
CREATE FUNCTION find_inherited_event(_journal bigint, _event text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT e.seq FROM journal_segments(_journal) s
        JOIN journal_entries e ON e.journal_id = s.journal_id AND e.event_id = _event AND e.seq > s.low AND e.seq <= s.high
        WHERE s.depth > 1 AND e.seq >= (SELECT j.first_seq FROM journals j WHERE j.journal_id = _journal)
        LIMIT 1);
END $$;

-- Of the journals that a journal continues: the wake that has processed an input; whether an entry is an input.
CREATE FUNCTION find_inherited_reply(_journal bigint, _input bigint) RETURNS SETOF journal_wakes LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT w.* FROM journal_segments(_journal) s CROSS JOIN LATERAL (
        SELECT o.* FROM journal_wakes o WHERE o.journal_id = s.journal_id AND o.processed >= _input
        ORDER BY o.processed, o.seq LIMIT 1) w
    WHERE s.depth > 1 AND w.base < _input AND w.seq > s.low AND w.seq <= s.high;
END $$;

CREATE FUNCTION is_inherited_input(_journal bigint, _seq bigint) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT e.is_input FROM journal_segments(_journal) s
        JOIN journal_entries e ON e.journal_id = s.journal_id AND e.seq = _seq AND _seq > s.low AND _seq <= s.high);
END $$;

-- Creating.
CREATE FUNCTION creation_parents(_creation jsonb) RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY (
        SELECT p.id::bigint FROM jsonb_array_elements_text(_creation -> 'parents') WITH ORDINALITY AS p (id, n) ORDER BY p.n)
$$;

-- Why a journal is not created; NULL: nothing is in its way.
CREATE FUNCTION creation_refusal(_creation jsonb) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    _session text := _creation ->> 'session_id';
    _parents bigint[] := creation_parents(_creation);
    _base bigint := (_creation ->> 'base_id')::bigint;
    _base_seq bigint := (_creation ->> 'base_seq')::bigint;
    _merged bigint := (_creation ->> 'merged_id')::bigint;
    _merged_seq bigint := (_creation ->> 'merged_seq')::bigint;
    base journals;
    merged journals;
    same boolean;
BEGIN
    SELECT j.lineage IS NOT DISTINCT FROM _creation ->> 'lineage' AND j.operator = _creation ->> 'operator' AND _parents = ARRAY (
        SELECT p.parent_id FROM journal_parents p WHERE p.journal_id = j.journal_id ORDER BY p.position)
    INTO same FROM journals j WHERE j.session_id = _session;
    IF FOUND THEN
        RETURN CASE WHEN same THEN 'repeated' ELSE 'taken' END;
    END IF;
    IF EXISTS (SELECT FROM instances i WHERE i.instance_id = _session)
       OR EXISTS (SELECT FROM session_states r WHERE r.session_id = _session)
       OR EXISTS (SELECT FROM journals j WHERE j.journal_id = (_creation ->> 'journal_id')::bigint) THEN
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
       OR coalesce(_base_seq < base.last_seq AND (_creation ->> 'requests' IS NULL
           OR (_creation ->> 'copies_state')::boolean AND _creation ->> 'state' IS NULL), false)
    THEN
        RETURN 'beyond';
    END IF;
    RETURN NULL;
END $$;

-- Whether the journals of a wake can be created, and the session on whose lease the wake ran has no greater epoch.
CREATE FUNCTION creations_fit(_creations text, _home text, _home_epoch bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT NOT EXISTS (SELECT FROM sessions s WHERE s.session_id = _home AND s.epoch > _home_epoch)
        AND NOT EXISTS (
            SELECT FROM jsonb_array_elements(coalesce(_creations, '[]')::jsonb) AS b (creation)
            WHERE coalesce(creation_refusal(b.creation), 'repeated') <> 'repeated')
$$;

-- Creates a journal from others: see `JournalCreation`.
--
-- Rows are locked in the order of all verbs: instances, sessions, session_states, journals.
CREATE FUNCTION create_journal(_creation jsonb, OUT outcome text, OUT created_id bigint, OUT created_seq bigint)
LANGUAGE plpgsql AS $$
DECLARE
    _session text := _creation ->> 'session_id';
    _id bigint := (_creation ->> 'journal_id')::bigint;
    _parents bigint[] := creation_parents(_creation);
    _base bigint := (_creation ->> 'base_id')::bigint;
    _base_seq bigint := (_creation ->> 'base_seq')::bigint;
    _merged bigint := (_creation ->> 'merged_id')::bigint;
    _merged_seq bigint := (_creation ->> 'merged_seq')::bigint;
    _now timestamptz := clock();
    base record;
    merged journals;
    copied bigint := 0;
BEGIN
    outcome := creation_refusal(_creation);
    IF outcome IS NOT NULL THEN
        SELECT j.journal_id, j.last_seq INTO created_id, created_seq FROM journals j WHERE j.session_id = _session;
        RETURN;
    END IF;
    IF (_creation ->> 'of_wake')::boolean THEN
        PERFORM add_instances(
            ARRAY[_session], ARRAY[_creation ->> 'generation'], ARRAY[_creation ->> 'name'], ARRAY[_creation ->> 'version'],
            ARRAY[_creation ->> 'start'], _session => ARRAY[_session]);
    ELSIF EXISTS (
        SELECT FROM create_instances(
            ARRAY[_session], ARRAY[_creation ->> 'generation'], ARRAY[_creation ->> 'name'], ARRAY[_creation ->> 'version'],
            ARRAY[_creation ->> 'start'], _session => ARRAY[_session]) c
        WHERE c.quota IS NOT NULL) THEN
        outcome := 'over_quota';
        RETURN;
    END IF;
    -- In one snapshot: an answer is among the entries, or its request is pending; and the state belongs to these entries.
    SELECT j.*, ARRAY (SELECT r FROM journal_requests r WHERE r.journal_id = _base) AS requests, s AS kept,
        ARRAY (SELECT t FROM journal_steps t WHERE t.journal_id = _base AND (_creation ->> 'copies_state')::boolean
               AND (_creation ->> 'of_wake')::boolean IS NOT TRUE AND _creation ->> 'state' IS NULL) AS steps
    INTO base FROM journals j
    LEFT JOIN session_states s
        ON s.session_id = j.session_id AND (_creation ->> 'copies_state')::boolean AND _creation ->> 'state' IS NULL
    WHERE j.journal_id = _base;
    SELECT * INTO merged FROM journals j WHERE j.journal_id = _merged;
    IF (_creation ->> 'copies_state')::boolean OR _creation ->> 'state' IS NOT NULL THEN
        INSERT INTO sessions AS s (session_id, worker_id, incarnation, epoch, locked_until, touched_at)
        VALUES (_session, '', '', nextval('epochs'), _now, _now)
        ON CONFLICT (session_id) DO UPDATE SET epoch = excluded.epoch;
        INSERT INTO session_states (session_id, state, encoding, schema_version, kind, name, labels, message_count,
            participants, version, generation, created_at, updated_at)
        SELECT _session, r.state, r.encoding, r.schema_version, r.kind, r.name, r.labels, r.message_count,
            r.participants, 1, gen_random_uuid()::text, _now, _now
        FROM (SELECT (base.kept).*) r WHERE r.session_id IS NOT NULL
        UNION ALL
        SELECT _session, decode(_creation ->> 'state', 'base64'), _creation ->> 'encoding',
            (_creation ->> 'schema_version')::bigint, _creation ->> 'state_kind', _creation ->> 'state_name', _creation -> 'labels',
            (_creation ->> 'message_count')::bigint, _creation -> 'participants', 1, gen_random_uuid()::text,
            least((_creation ->> 'created_at')::timestamptz, _now), least((_creation ->> 'updated_at')::timestamptz, _now)
        WHERE _creation ->> 'state' IS NOT NULL;
    END IF;
    -- They stay until the commit, as they are needed here.
    PERFORM FROM journals j WHERE j.journal_id = ANY (_parents || _base || _merged) ORDER BY j.session_id FOR KEY SHARE;
    IF _base IS NOT NULL AND NOT EXISTS (SELECT FROM journals j WHERE j.journal_id = _base AND j.session_id IS NOT NULL)
       OR _merged IS NOT NULL
          AND NOT EXISTS (SELECT FROM journals j WHERE j.journal_id = _merged AND j.session_id IS NOT NULL) THEN
        RAISE serialization_failure USING MESSAGE = 'the journal was deleted in this moment';
    END IF;
    -- Requests, or the state, of later than the end of the base; or retention has removed entries since the journal was read.
    IF coalesce(_base_seq < base.last_seq AND (_creation ->> 'requests' IS NULL OR (base.kept).session_id IS NOT NULL), false)
       OR EXISTS (SELECT FROM journals j WHERE j.journal_id = _base AND j.first_seq <> base.first_seq) THEN
        RAISE serialization_failure USING MESSAGE = 'the journal has changed in this moment';
    END IF;
    _base_seq := coalesce(_base_seq, base.last_seq);
    _merged_seq := coalesce(_merged_seq, merged.last_seq);
    created_id := _id;
    created_seq := coalesce(_base_seq, 0);
    INSERT INTO journals (journal_id, session_id, kind, parent, first_seq, last_seq, processed, base_id, base_seq, home,
        lineage, operator, extras, title, owner, labels, used, oldest_at, created_at, updated_at)
    VALUES (_id, _session, _creation ->> 'kind', _creation ->> 'parent',
        coalesce((SELECT j.first_seq FROM journals j WHERE j.journal_id = _base), 1), created_seq,
        CASE WHEN _base IS NULL THEN (_creation ->> 'processed')::bigint ELSE least(base.processed, _base_seq) END,
        _base, _base_seq, _creation ->> 'home', _creation ->> 'lineage', _creation ->> 'operator', _creation ->> 'extras',
        _creation #>> '{about,title}', _creation #>> '{about,owner}',
        coalesce(_creation #> '{about,labels}', '{}'),
        coalesce(merged.used, '{}') || coalesce(base.used, '{}'), _now, _now, _now);
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
        SELECT _id, created_seq + row_number() OVER (ORDER BY f.seq), f.recorded_at,
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
        created_seq := created_seq + copied;
    END IF;
    INSERT INTO journal_entries (journal_id, seq, recorded_at, is_input, kind, event_id, wake_id, payload)
    SELECT _id, created_seq + e.n, coalesce((e.entry ->> 5)::timestamptz, _now), (e.entry ->> 4)::boolean, e.entry ->> 0,
        e.entry ->> 2, e.entry ->> 3, e.entry ->> 1
    FROM jsonb_array_elements(_creation -> 'entries') WITH ORDINALITY AS e (entry, n);
    GET DIAGNOSTICS copied = ROW_COUNT;
    created_seq := created_seq + copied;
    INSERT INTO journal_wakes (journal_id, seq, wake_id, base, read, processed, outcome, reason, attempt, error)
    SELECT _id, (w.wake ->> 0)::bigint, w.wake ->> 1, (w.wake ->> 2)::bigint, (w.wake ->> 3)::bigint, (w.wake ->> 4)::bigint,
        w.wake ->> 5, w.wake ->> 6, (w.wake ->> 7)::bigint, w.wake ->> 8
    FROM jsonb_array_elements(_creation -> 'wakes') AS w (wake);
    UPDATE journals j SET last_seq = created_seq, size = (
        SELECT coalesce(sum(octet_length(e.payload)), 0) FROM journal_entries e WHERE e.journal_id = _id),
        oldest_at = least(oldest_at, CASE WHEN _base IS NULL
            THEN (SELECT min(e.recorded_at) FROM journal_entries e WHERE e.journal_id = _id) END)
    WHERE j.journal_id = _id;
    INSERT INTO journal_requests (journal_id, request_id, kind, wake_id, seq, place, created_at, expires_at, payload)
    SELECT _id, r.request_id, r.kind, r.wake_id, r.seq, r.place, r.created_at, r.expires_at, r.payload
    FROM unnest(base.requests) r WHERE _creation ->> 'requests' IS NULL
    UNION ALL
    SELECT _id, n.request ->> 0, n.request ->> 1, n.request ->> 3, (n.request ->> 4)::bigint, n.place,
        (n.request ->> 5)::timestamptz, coalesce(r.expires_at, (n.request ->> 6)::timestamptz), n.request ->> 2
    FROM jsonb_array_elements(coalesce(nullif(_creation -> 'requests', 'null'), '[]')) WITH ORDINALITY AS n (request, place)
    LEFT JOIN unnest(base.requests) r ON r.request_id = n.request ->> 0;
    INSERT INTO journal_steps (journal_id, wake_id, key, arguments, result)
    SELECT _id, t.wake_id, t.key, t.arguments, t.result FROM unnest(base.steps) t;
    INSERT INTO journal_revisits (journal_id, key, due_at, priority, reason, note, wake_id)
    SELECT _id, v.revisit ->> 0, (v.revisit ->> 1)::timestamptz, (v.revisit ->> 2)::bigint, v.revisit ->> 3, v.revisit ->> 4,
        v.revisit ->> 5
    FROM jsonb_array_elements(_creation -> 'revisits') AS v (revisit);
    IF _creation ->> 'message' IS NOT NULL AND (
        EXISTS (SELECT FROM journal_requests r WHERE r.journal_id = _id AND r.expires_at IS NOT NULL)
        OR EXISTS (SELECT FROM journal_revisits v WHERE v.journal_id = _id)
        OR EXISTS (
            SELECT FROM journals j CROSS JOIN LATERAL find_entries(
                _id, j.processed, created_seq + 1, '{}', NULL, NULL, true, false, 1)
            WHERE j.journal_id = _id)) THEN
        PERFORM send_messages(
            ARRAY[_session], NULL, ARRAY[replace(_creation ->> 'message', '"$SEQ"', created_seq::text)]);
    END IF;
    outcome := 'created';
END $$;

-- Creates the journals that wakes create, behind what these wakes have added to their journals, which are in the same order;
-- see `JournalWrite`. With `_only`, journals of other writes are left out.
CREATE FUNCTION create_journals(_creations text[], _home text[], _home_epoch bigint[], _only bigint[] = NULL) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM sessions s WHERE s.session_id = ANY (_home) ORDER BY s.session_id FOR NO KEY UPDATE;
    IF EXISTS (
        SELECT FROM unnest(_home) WITH ORDINALITY AS h (session_id, n) JOIN sessions s USING (session_id)
        WHERE s.epoch > _home_epoch[h.n] AND (_only IS NULL OR h.n = ANY (_only)))
       OR EXISTS (
        SELECT FROM unnest(_creations) WITH ORDINALITY AS w (creations, n)
        CROSS JOIN LATERAL jsonb_array_elements(w.creations::jsonb) AS b (creation)
        CROSS JOIN LATERAL create_journal(b.creation || '{"of_wake": true}') AS r
        WHERE w.creations IS NOT NULL AND (_only IS NULL OR w.n = ANY (_only)) AND r.outcome NOT IN ('created', 'repeated')) THEN
        PERFORM refuse();
    END IF;
END $$;

-- Creates the journals and instances that appends are to start, as far as they are missing; returns the new journals. A journal
-- begins with an instance of its own: one that is left of a deleted journal may end before it reads the new one.
CREATE FUNCTION start_journals(
    _session text[], _kind text[], _entry_kind text[], _event text[], _sender text[], _start_name text[], _start text[],
    _start_generation text[], _start_version text[], _start_journal bigint[], _start_parent text[], _start_about text[],
    _answer text[], _only bigint[]
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    of_wakes bigint[]; -- places of elements that need an instance: no quota applies to the starts of wakes
    missing bigint[];  -- the same of clients
    wanted bigint[];   -- places of elements that need a journal
    refused boolean;
    created bigint[];
    left_over text[];  -- instances
BEGIN
    SELECT array_agg(l.instance_id) INTO left_over FROM (
        SELECT i.instance_id FROM instances i
        WHERE i.instance_id = ANY (_session) AND i.status IN ('pending', 'running', 'suspended')
          AND NOT EXISTS (SELECT FROM journals j WHERE j.session_id = i.instance_id)
          AND EXISTS (
              SELECT FROM unnest(_session) WITH ORDINALITY AS s (session_id, k)
              WHERE s.session_id = i.instance_id AND _start_name[s.k] = i.name AND _entry_kind[s.k] IS NOT NULL
                AND _answer[s.k] IS NULL AND (_sender[s.k] IS NULL OR _sender[s.k] = _start_parent[s.k])
                AND (_only IS NULL OR s.k = ANY (_only)))
        ORDER BY i.instance_id FOR UPDATE) l;
    IF left_over IS NOT NULL THEN
        PERFORM delete_instances(left_over, true, false);
    END IF;
    PERFORM FROM journals j WHERE j.session_id = ANY (_session) ORDER BY j.session_id FOR NO KEY UPDATE;
    SELECT array_agg(f.k) FILTER (WHERE _sender[f.k] IS NOT NULL), array_agg(f.k) FILTER (WHERE _sender[f.k] IS NULL),
        array_agg(f.k) FILTER (WHERE f.needs_journal)
    INTO of_wakes, missing, wanted
    FROM (
        SELECT DISTINCT ON (s.session_id) s.session_id, s.k, j.journal_id IS NULL AS needs_journal
        FROM unnest(_session) WITH ORDINALITY AS s (session_id, k)
        LEFT JOIN instances i ON i.instance_id = s.session_id
        LEFT JOIN journals j ON j.session_id = s.session_id
        WHERE _start_name[s.k] IS NOT NULL AND (_only IS NULL OR s.k = ANY (_only))
          AND i.instance_id IS NULL
          AND CASE WHEN j.journal_id IS NULL THEN _entry_kind[s.k] IS NOT NULL AND _answer[s.k] IS NULL
                   ELSE j.kind = _kind[s.k] AND NOT j.closed AND NOT EXISTS (
                       SELECT FROM journal_entries e WHERE e.journal_id = j.journal_id AND e.event_id = _event[s.k]) END
          AND (_sender[s.k] IS NULL
               OR _sender[s.k] = CASE WHEN j.journal_id IS NULL THEN _start_parent[s.k] ELSE j.parent END)
        ORDER BY s.session_id, s.k) f;
    IF of_wakes IS NOT NULL THEN
        PERFORM add_instances(_session, _start_generation, _start_name, _start_version, _start, _session => _session,
            _only => of_wakes);
    END IF;
    IF missing IS NOT NULL THEN
        SELECT bool_or(c.quota IS NOT NULL) INTO refused FROM create_instances(
            _session, _start_generation, _start_name, _start_version, _start, _session => _session, _only => missing) c;
        IF refused AND cardinality(missing) > 1 THEN -- a quota refuses all of a batch: then each is tried on its own
            PERFORM create_instances(_session, _start_generation, _start_name, _start_version, _start, _session => _session,
                _only => ARRAY[m.k])
            FROM unnest(missing) AS m (k);
        END IF;
    END IF;
    IF wanted IS NOT NULL THEN
        WITH added AS (
            INSERT INTO journals (journal_id, session_id, kind, parent, parent_journal, title, owner, labels, oldest_at,
                created_at, updated_at)
            SELECT _start_journal[w.k], i.instance_id, _kind[w.k], _start_parent[w.k],
                (SELECT p.journal_id FROM journals p WHERE p.session_id = _start_parent[w.k]),
                a.about ->> 'title', a.about ->> 'owner', coalesce(a.about -> 'labels', '{}'), c.now, c.now, c.now
            FROM unnest(wanted) AS w (k) CROSS JOIN (SELECT clock() AS now) c
            CROSS JOIN LATERAL (SELECT _start_about[w.k]::jsonb AS about) a
            JOIN instances i ON i.instance_id = _session[w.k] AND i.generation = _start_generation[w.k]
            ORDER BY i.instance_id
            ON CONFLICT (session_id) DO NOTHING
            RETURNING journal_id
        )
        SELECT array_agg(a.journal_id) INTO created FROM added a;
    END IF;
    RETURN created;
END $$;

-- Appending.
-- Returns the time from which a parked item is visible that is queued now: an item with a priority and without limits begins before
-- others. See affinity/orchestration/gates.py.
CREATE FUNCTION unparked_at(_gate text, _limited boolean, _now timestamptz) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN _gate IS NULL OR _limited THEN _now ELSE _now - (_gate::jsonb ->> 0)::float8 * interval '3600 s' END
$$;

-- Queues the parked items of instances (NULL: none), and returns the workers that are to fetch them, by position: the holders of
-- their sessions, and an empty text for an item that waits at its limits. The loop replaces a join of the queued items with the given
-- instances, whose time would grow with the product of their numbers.
CREATE FUNCTION unpark_items(_instance text[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    moment timestamptz := clock();
    missing bigint := cardinality(array_remove(_instance, NULL));
    holders text[] := array_fill(NULL::text, ARRAY[cardinality(_instance)]);
    place bigint;
    worker text;
BEGIN
    FOR place, worker IN
        WITH item AS (
            UPDATE parked_items a SET parked = false
            FROM unnest(_instance) WITH ORDINALITY AS w (instance_id, k)
            WHERE a.instance_id = w.instance_id
            RETURNING a.*, w.k
        ), routed AS MATERIALIZED (
            SELECT i.*, s.holder, s.route FROM item i LEFT JOIN session_routes s ON s.session_id = i.session_id
        ), queued AS (
            INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload,
                enqueued_at, gate, limited, gate_session)
            SELECT r.instance_id, r.execution_id, r.activity_id, r.name,
                CASE WHEN r.limited IS NOT TRUE THEN r.session_id END,
                CASE WHEN r.limited THEN 'gate' WHEN r.session_id IS NULL THEN 'free' ELSE coalesce(r.route, 'new') END,
                unparked_at(r.gate, r.limited, moment) + r.k * interval '1 us', r.payload, moment, r.gate, r.limited,
                CASE WHEN r.limited THEN r.session_id END
            FROM routed r
        )
        SELECT r.k, CASE WHEN r.limited THEN '' ELSE r.holder END FROM routed r
    LOOP
        holders[place] := worker;
        missing := missing - 1;
    END LOOP;
    IF missing > 0 THEN
        PERFORM refuse(); -- its execution has ended in this moment
    END IF;
    RETURN holders;
END $$;

-- Appends to journals: see `JournalAppend.message`. The n-th append of a batch to one journal is done in round n.
-- fresh: journals that this batch has created. holders: see `unpark_items`; NULL: no item was queued.
CREATE FUNCTION append_journals(
    _session text[], _kind text[], _entry_kind text[], _entry text[], _event text[], _wake text[], _input boolean[],
    _message text[], _unread_limit bigint[],
    _start_name text[] = NULL, _start text[] = NULL, _start_generation text[] = NULL, _start_version text[] = NULL,
    _start_journal bigint[] = NULL, _start_parent text[] = NULL, _start_about text[] = NULL,
    _answer text[] = NULL, _answer_kind text[] = NULL, _answer_wake text[] = NULL, _drops boolean[] = NULL,
    _closes boolean[] = NULL, _sender text[] = NULL,
    _round bigint[] = NULL, _rounds bigint = 1, _only bigint[] = NULL, _journal bigint[] = NULL,
    OUT places bigint[], OUT outcomes text[], OUT seqs bigint[], OUT journal_ids bigint[], OUT created boolean[],
    OUT unparked boolean[], OUT holders text[]
) LANGUAGE plpgsql AS $$
DECLARE
    most quotas;
    fresh bigint[];
    done integer := 0; -- places of the rounds before
    unused text[];     -- instances that this batch has created
BEGIN
    SELECT * INTO most FROM quotas;
    IF _start_name IS NOT NULL THEN
        IF _journal IS NOT NULL THEN
            -- Only the instance may be created for these, and not the journal.
            _start_name := ARRAY (
                SELECT CASE WHEN _journal[s.k] IS NULL OR j.journal_id = _journal[s.k] THEN _start_name[s.k] END
                FROM unnest(_session) WITH ORDINALITY AS s (session_id, k)
                LEFT JOIN journals j ON j.session_id = s.session_id ORDER BY s.k);
        END IF;
        IF EXISTS (
            SELECT FROM unnest(_session, _start_name) AS s (session_id, start_name)
            WHERE s.start_name IS NOT NULL AND NOT EXISTS (
                SELECT FROM journals j JOIN instances i ON i.instance_id = j.session_id WHERE j.session_id = s.session_id))
        THEN
            fresh := start_journals(_session, _kind, _entry_kind, _event, _sender, _start_name, _start, _start_generation,
                _start_version, _start_journal, _start_parent, _start_about, _answer, _only);
        END IF;
    END IF;
    PERFORM FROM journals j WHERE j.session_id = ANY (_session) ORDER BY j.session_id FOR NO KEY UPDATE;
    IF most.instance_bytes IS NOT NULL THEN
        PERFORM measure_instances(_session);
    END IF;
    FOR this IN 1 .. _rounds LOOP
        WITH judged AS MATERIALIZED (
            SELECT s.session_id, s.k, j.journal_id, r.route, coalesce(z.parked, false) AS parked,
                coalesce(z.parked AND _input[s.k] AND _message[s.k] IS NOT NULL, false) AS unparks,
                coalesce(e.seq, j.last_seq + (_entry_kind[s.k] IS NOT NULL)::int) AS seq,
                CASE
                    WHEN (j.journal_id <> _journal[s.k]) IS TRUE
                      OR j.journal_id IS NULL AND (_start_name[s.k] IS NULL OR _entry_kind[s.k] IS NULL)
                      OR j.last_seq = 0 AND j.journal_id = ANY (fresh) AND _start_name[s.k] IS NULL THEN 'unknown'
                    WHEN j.kind <> _kind[s.k] THEN 'other_kind'
                    WHEN e.seq IS NOT NULL THEN 'repeated'
                    WHEN j.closed OR i.instance_id IS NOT NULL AND r.route IS NULL
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
                    WHEN j.journal_id IS NULL THEN refuse()::text -- it, or the instance, was deleted in this moment
                    -- The quotas count as for messages; they refuse nothing that a wake sends to a child.
                    WHEN _message[s.k] IS NULL OR z.parked AND _input[s.k] OR _unread_limit[s.k] IS NULL
                      OR _sender[s.k] IS NOT NULL THEN NULL
                    WHEN i.unread + (
                        SELECT count(*) FROM (
                            SELECT FROM orchestrator_queue q
                            WHERE q.instance_id = s.session_id AND q.timer_execution IS NULL
                            LIMIT least(_unread_limit[s.k], most.unread_events)
                        ) unread
                    ) >= least(_unread_limit[s.k], most.unread_events) THEN 'full'
                    WHEN most.instance_bytes IS NOT NULL
                     AND instance_bytes(s.session_id, i.generation) + octet_length(_message[s.k]) > most.instance_bytes
                    THEN 'over_quota'
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
                SELECT a.parked FROM parked_items a
                WHERE a.instance_id = s.session_id AND a.generation = i.generation AND a.execution_id = i.execution_id OFFSET 0
            ) z ON true
            WHERE (_round IS NULL OR _round[s.k] = this) AND (_only IS NULL OR s.k = ANY (_only))
        ), sent AS (
            INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
            SELECT p.session_id, p.route, (SELECT clock()),
                replace(replace(_message[p.k], '"$SEQ"', p.seq::text), '"$PARKED"', p.parked::text)
            FROM judged p WHERE p.outcome IS NULL AND _message[p.k] IS NOT NULL AND NOT p.unparks ORDER BY p.k
        ), entered AS (
            INSERT INTO journal_entries (journal_id, seq, recorded_at, is_input, kind, event_id, wake_id, payload, request_seq)
            SELECT p.journal_id, p.seq, (SELECT clock()), _input[p.k], _entry_kind[p.k], _event[p.k], _wake[p.k],
                _entry[p.k], CASE WHEN _answer[p.k] IS NOT NULL THEN (
                    SELECT r.seq FROM journal_requests r
                    WHERE r.journal_id = p.journal_id AND r.request_id = _answer[p.k]) END
            FROM judged p WHERE p.outcome IS NULL AND _entry_kind[p.k] IS NOT NULL
        ), changed AS (
            UPDATE journals j
            SET last_seq = p.seq, size = j.size + coalesce(octet_length(_entry[p.k]), 0),
                dropped_seq = CASE WHEN _drops[p.k] THEN p.seq ELSE j.dropped_seq END,
                closed = j.closed OR coalesce(_closes[p.k], false), updated_at = clock()
            FROM judged p WHERE j.journal_id = p.journal_id AND p.outcome IS NULL
        )
        SELECT places || array_agg(p.k), outcomes || array_agg(p.outcome), seqs || array_agg(p.seq),
            journal_ids || array_agg(p.journal_id), unparked || array_agg(p.unparks AND p.outcome IS NULL),
            created || array_agg(coalesce(p.outcome IS NULL AND p.seq = 1 AND p.journal_id = ANY (fresh), false))
        INTO places, outcomes, seqs, journal_ids, unparked, created
        FROM judged p;
        IF _answer IS NOT NULL THEN
            DELETE FROM journal_requests r
            USING unnest(places[done + 1:], outcomes[done + 1:], journal_ids[done + 1:]) AS p (k, outcome, journal_id)
            WHERE p.outcome IS NULL AND r.journal_id = p.journal_id AND (_drops[p.k] OR r.request_id = _answer[p.k]);
            DELETE FROM journal_revisits r
            USING unnest(places[done + 1:], outcomes[done + 1:], journal_ids[done + 1:]) AS p (k, outcome, journal_id)
            WHERE p.outcome IS NULL AND r.journal_id = p.journal_id AND _drops[p.k];
        END IF;
        IF true = ANY (unparked) THEN -- in this round or before
            holders := coalesce(holders, array_fill(NULL::text, ARRAY[done])) || unpark_items(ARRAY (
                SELECT CASE WHEN p.unparked THEN _session[p.k] END
                FROM unnest(places[done + 1:], unparked[done + 1:]) WITH ORDINALITY AS p (k, unparked, x) ORDER BY p.x));
        END IF;
        done := cardinality(places);
    END LOOP;
    IF fresh IS NOT NULL THEN
        -- What was started for an element that a limit has refused since.
        WITH empty AS (
            DELETE FROM journals j WHERE j.journal_id = ANY (fresh) AND j.last_seq = 0 RETURNING j.session_id
        )
        SELECT array_agg(e.session_id) INTO unused FROM empty e;
        IF unused IS NOT NULL THEN
            PERFORM delete_instances(unused, true, false);
        END IF;
    END IF;
END $$;

-- Appends one input to a journal that exists, for an instance with a parked work item: the usual append of a client, with scalars
-- in place of arrays of one element. In other cases it calls `append_journals`, and returns the same answer.
CREATE FUNCTION append_input(
    _session text, _kind text, _entry_kind text, _entry text, _event text, _message text, _unread_limit bigint,
    OUT outcome text, OUT seq bigint, OUT journal bigint, OUT unparked boolean, OUT holder text
) LANGUAGE plpgsql AS $$
DECLARE
    base bigint;
    item parked_items;
    route text;
    moment timestamptz;
BEGIN
    unparked := false;
    SELECT j.journal_id, j.last_seq + 1, j.base_id INTO journal, seq, base FROM journals j
    WHERE j.session_id = _session AND j.kind = _kind AND NOT j.closed FOR NO KEY UPDATE;
    IF FOUND THEN
        PERFORM FROM journal_entries e WHERE e.journal_id = journal AND e.event_id = _event;
        IF NOT FOUND AND (base IS NULL OR find_inherited_event(journal, _event) IS NULL) THEN
            UPDATE parked_items a SET parked = false
            FROM instances i
            WHERE a.instance_id = _session AND a.parked
              AND i.instance_id = a.instance_id AND i.generation = a.generation AND i.execution_id = a.execution_id
              AND i.status IN ('pending', 'running', 'suspended')
              AND NOT EXISTS (SELECT FROM quotas q WHERE q.instance_bytes IS NOT NULL)
            RETURNING a.* INTO item;
            unparked := FOUND;
        END IF;
    END IF;
    IF NOT unparked THEN
        SELECT a.outcomes[1], a.seqs[1], a.journal_ids[1], a.unparked[1], a.holders[1]
        INTO outcome, seq, journal, unparked, holder
        FROM append_journals(ARRAY[_session], ARRAY[_kind], ARRAY[_entry_kind], ARRAY[_entry], ARRAY[_event],
            ARRAY[NULL], ARRAY[true], ARRAY[_message], ARRAY[_unread_limit]) a;
        RETURN;
    END IF;
    SELECT s.holder, s.route INTO holder, route FROM session_routes s WHERE s.session_id = item.session_id;
    moment := clock();
    INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload, enqueued_at,
        gate, limited, gate_session)
    VALUES (_session, item.execution_id, item.activity_id, item.name,
        CASE WHEN item.limited IS NOT TRUE THEN item.session_id END,
        CASE WHEN item.limited THEN 'gate' WHEN item.session_id IS NULL THEN 'free' ELSE coalesce(route, 'new') END,
        unparked_at(item.gate, item.limited, moment), item.payload, moment, item.gate, item.limited,
        CASE WHEN item.limited THEN item.session_id END);
    IF item.limited THEN
        holder := '';
    END IF;
    INSERT INTO journal_entries (journal_id, seq, recorded_at, is_input, kind, event_id, payload)
    VALUES (journal, seq, moment, true, _entry_kind, _event, _entry);
    UPDATE journals j SET last_seq = seq, size = j.size + octet_length(_entry), updated_at = moment
    WHERE j.journal_id = journal;
END $$;

-- Appends the fallback entries of refused appends of wakes: see `JournalAppend.if_refused`. Called with the result of
-- `append_journals`. `_bounces` is an array of objects, each with the place of the append that it replaces. REFUSAL_MARK in an
-- entry becomes the outcome. Returns the number of appended entries.
CREATE FUNCTION bounce_journals(_places bigint[], _outcomes text[], _bounces json) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    session text[]; kind text[]; entry_kind text[]; entry text[]; event text[]; wake text[]; input boolean[]; message text[]; journals bigint[];
    round bigint[];
BEGIN
    SELECT array_agg(b.session ORDER BY b.n), array_agg(b.kind ORDER BY b.n), array_agg(b.entry_kind ORDER BY b.n),
        array_agg(replace(b.entry, '"\u001a"', to_json(p.outcome)::text) ORDER BY b.n), array_agg(b.event ORDER BY b.n),
        array_agg(b.wake ORDER BY b.n), array_agg(b.input ORDER BY b.n), array_agg(b.message ORDER BY b.n), array_agg(b.journal ORDER BY b.n),
        array_agg(b.round ORDER BY b.n)
    INTO session, kind, entry_kind, entry, event, wake, input, message, journals, round
    FROM unnest(_places, _outcomes) AS p (place, outcome)
    JOIN (
        -- Gaps in the rounds of a session do no harm.
        SELECT x.*, row_number() OVER (PARTITION BY x.session ORDER BY x.n) AS round
        FROM ROWS FROM (
            json_to_recordset(_bounces) AS (
                place bigint, session text, kind text, entry_kind text, entry text, event text, wake text, input boolean,
                message text, journal bigint)
        ) WITH ORDINALITY AS x (place, session, kind, entry_kind, entry, event, wake, input, message, journal, n)
    ) b ON b.place = p.place
    WHERE p.outcome <> 'repeated';
    IF session IS NOT NULL THEN
        PERFORM FROM append_journals(session, kind, entry_kind, entry, event, wake, input, message,
            array_fill(NULL::bigint, ARRAY[cardinality(session)]), _journal => journals, _round => round,
            _rounds => (SELECT max(r.n) FROM unnest(round) AS r (n)));
    END IF;
    RETURN coalesce(cardinality(session), 0);
END $$;

-- Removes the parked items that turns cancel, then parks new items. Called after the turns and the writes of wakes to their own
-- journals. An item that may not be parked is queued. Returns by position: NULL if the item is parked, else the worker that is to
-- fetch it, or an empty text; NULL in place of the array: all are parked. `_lock`: sessions of journals that are not locked yet.
CREATE FUNCTION park_items(
    _instance text[] = NULL, _generation text[] = NULL, _execution bigint[] = NULL, _activity bigint[] = NULL,
    _name text[] = NULL, _session text[] = NULL, _payload text[] = NULL, _gate text[] = NULL, _limited boolean[] = NULL,
    _lock text[] = NULL,
    _cancel_instance text[] = NULL, _cancel_execution bigint[] = NULL, _cancel_activity bigint[] = NULL
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    busy text[];
    queued text[];
BEGIN
    -- Only a commit of an instance adds its row. Most instances that cancel something have none.
    IF _instance IS NULL AND (SELECT true FROM parked_items a WHERE a.instance_id = ANY (_cancel_instance) LIMIT 1) IS NULL THEN
        RETURN NULL;
    END IF;
    IF _lock IS NOT NULL THEN
        PERFORM FROM journals j WHERE j.session_id = ANY (_lock) ORDER BY j.session_id FOR NO KEY UPDATE;
    END IF;
    IF _cancel_instance IS NOT NULL THEN
        UPDATE parked_items a SET parked = false
        FROM unnest(_cancel_instance) WITH ORDINALITY AS c (instance_id, k)
        WHERE a.instance_id = c.instance_id AND a.execution_id = _cancel_execution[c.k]
          AND a.activity_id = _cancel_activity[c.k] AND a.parked;
        -- What an append has queued after the commit had looked into the queue.
        DELETE FROM worker_queue q
        USING unnest(_cancel_instance) WITH ORDINALITY AS c (instance_id, k) JOIN parked_items a USING (instance_id)
        WHERE a.execution_id = _cancel_execution[c.k] AND a.activity_id = _cancel_activity[c.k]
          AND q.instance_id = a.instance_id AND q.execution_id = a.execution_id AND q.activity_id = a.activity_id;
    END IF;
    IF _instance IS NULL THEN
        RETURN NULL;
    END IF;
    WITH put AS (
        INSERT INTO parked_items AS a (instance_id, generation, execution_id, activity_id, name, session_id, payload, gate,
            limited, parked)
        SELECT w.instance_id, _generation[w.k], _execution[w.k], _activity[w.k], _name[w.k], _session[w.k], _payload[w.k],
            _gate[w.k], _limited[w.k],
            CASE
                WHEN j.journal_id IS NULL THEN false
                WHEN (SELECT true FROM journal_entries e
                      WHERE e.journal_id = j.journal_id AND e.is_input AND e.seq > j.processed LIMIT 1) THEN false
                WHEN j.processed < j.base_seq THEN (
                    SELECT true FROM find_entries(
                        j.journal_id, j.processed, 9223372036854775807, '{}', NULL, NULL, true, false, 1)) IS NULL
                ELSE true
            END
        FROM unnest(_instance) WITH ORDINALITY AS w (instance_id, k)
        LEFT JOIN journals j ON j.session_id = w.instance_id
        ON CONFLICT (instance_id) DO UPDATE
        SET generation = excluded.generation, execution_id = excluded.execution_id, activity_id = excluded.activity_id,
            name = excluded.name, session_id = excluded.session_id, payload = excluded.payload, parked = excluded.parked,
            gate = excluded.gate, limited = excluded.limited
        RETURNING a.instance_id, a.parked
    )
    SELECT array_agg(p.instance_id) FILTER (WHERE NOT p.parked) INTO busy FROM put p;
    IF busy IS NULL THEN
        RETURN NULL;
    END IF;
    queued := ARRAY (
        SELECT CASE WHEN w.instance_id = ANY (busy) THEN w.instance_id END
        FROM unnest(_instance) WITH ORDINALITY AS w (instance_id, k) ORDER BY w.k);
    RETURN ARRAY (
        SELECT CASE WHEN p.instance_id IS NOT NULL THEN coalesce(p.holder, '') END
        FROM unnest(queued, unpark_items(queued)) WITH ORDINALITY AS p (instance_id, holder, k) ORDER BY p.k);
END $$;

-- Removing.
-- Deletes journals, but for entries that others continue. Also removes earlier deleted journals that no journal now
-- continues or names as its parent. Returns their sessions.
CREATE FUNCTION delete_journals(_session text[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    gone bigint[];
    deleted text[];
    freed bigint[];
    kept bigint[];
BEGIN
    -- Who makes a journal that continues one of these locks its row too. Journals that have delegated to them are locked in
    -- the same order.
    SELECT array_agg(l.journal_id) FILTER (WHERE l.session_id = ANY (_session)),
        array_agg(l.session_id) FILTER (WHERE l.session_id = ANY (_session))
    INTO gone, deleted
    FROM (
        SELECT j.journal_id, j.session_id FROM journals j
        WHERE j.session_id = ANY (_session || ARRAY (
            SELECT p.session_id FROM journal_delegations d JOIN journals p USING (journal_id)
            WHERE d.child = ANY (_session))) ORDER BY j.session_id FOR UPDATE) l;
    UPDATE journals j SET session_id = NULL, title = NULL, owner = NULL, labels = '{}', updated_at = clock()
    WHERE j.journal_id = ANY (gone);
    DELETE FROM journal_requests r WHERE r.journal_id = ANY (gone);
    DELETE FROM journal_revisits r WHERE r.journal_id = ANY (gone);
    DELETE FROM journal_delegations d WHERE d.journal_id = ANY (gone);
    DELETE FROM journal_delegations d WHERE d.child = ANY (deleted);
    DELETE FROM journal_steps s WHERE s.journal_id = ANY (gone);
    DELETE FROM journal_streams s WHERE s.journal_id = ANY (gone);
    LOOP
        WITH removed AS (
            DELETE FROM journals j
            WHERE j.journal_id = ANY (gone) AND j.session_id IS NULL
              AND NOT EXISTS (SELECT FROM journals f WHERE f.base_id = j.journal_id)
              AND NOT EXISTS (SELECT FROM journal_parents p WHERE p.parent_id = j.journal_id)
            RETURNING j.journal_id, j.base_id
        ), emptied AS (
            DELETE FROM journal_entries e USING removed r WHERE e.journal_id = r.journal_id
        ), forgotten AS (
            DELETE FROM journal_wakes w USING removed r WHERE w.journal_id = r.journal_id
        ), orphaned AS (
            DELETE FROM journal_parents p USING removed r WHERE p.journal_id = r.journal_id RETURNING p.parent_id
        )
        SELECT array_agg(DISTINCT f.id) FILTER (WHERE f.id IS NOT NULL) INTO freed
        FROM (SELECT r.base_id AS id FROM removed r UNION SELECT o.parent_id FROM orphaned o) f;
        kept := kept || gone;
        EXIT WHEN freed IS NULL;
        gone := freed;
        PERFORM FROM journals j WHERE j.journal_id = ANY (gone) AND j.session_id IS NULL
        ORDER BY j.journal_id FOR UPDATE;
    END LOOP;
    -- Of journals that are kept, the entries after the last one that another journal continues, and their wakes.
    WITH kept_to AS (
        SELECT j.journal_id, coalesce((SELECT max(f.base_seq) FROM journals f WHERE f.base_id = j.journal_id), 0) AS seq
        FROM journals j WHERE j.session_id IS NULL AND j.journal_id = ANY (kept)
    ), forgotten AS (
        DELETE FROM journal_wakes w USING kept_to k WHERE w.journal_id = k.journal_id AND w.seq > k.seq
    )
    DELETE FROM journal_entries e USING kept_to k WHERE e.journal_id = k.journal_id AND e.seq > k.seq;
    RETURN deleted;
END $$;

-- A journal is deleted with the record of its session.
CREATE FUNCTION delete_journal_of_record() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF EXISTS (SELECT FROM deleted d JOIN journals j USING (session_id)) THEN
        PERFORM delete_journals(ARRAY (SELECT d.session_id FROM deleted d));
    END IF;
    RETURN NULL;
END $$;

-- Adds the usage of a journal's entries behind _low, up to _upto, to the usage that it keeps of removed entries. A payload
-- that the database cannot read does not stop retention.
CREATE FUNCTION keep_usage(_journal bigint, _low bigint, _upto bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    entry record;
    usage jsonb;
    writers text[] := '{}';
    usages jsonb[] := '{}';
BEGIN
    FOR entry IN
        SELECT regexp_replace(coalesce(e.wake_id, (
                SELECT w.wake_id FROM journal_entries w
                WHERE w.journal_id = e.journal_id AND w.seq > e.seq AND w.wake_id IS NOT NULL
                ORDER BY w.seq LIMIT 1), ''), '-[^-]*-[^-]*$', '') AS writer, e.payload
        FROM find_entries(_journal, _low, _upto + 1, '{}', NULL, NULL, false, false, _upto - _low) o
        -- OFFSET 0: by the key, whatever statistics say of the number of entries.
        CROSS JOIN LATERAL (
            SELECT n.* FROM journal_entries n WHERE n.journal_id = o.owner AND n.seq = o.seq OFFSET 0) e
        WHERE e.payload LIKE '%"usage"%'
        ORDER BY e.seq
    LOOP
        BEGIN
            -- jsonb has no NUL.
            usage := replace(entry.payload, '\u0000', '\u0001')::jsonb -> 'usage';
        EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
            CONTINUE;
        END;
        IF jsonb_typeof(usage) = 'object' THEN
            writers := writers || entry.writer;
            usages := usages || usage;
        END IF;
    END LOOP;
    UPDATE journals c SET used = c.used || added.used
    FROM (
        SELECT jsonb_object_agg(w.writer, jsonb_build_array(
            w.entries + coalesce((j.used -> w.writer ->> 0)::bigint, 0),
            coalesce(j.used -> w.writer -> 1, '{}') || (
                SELECT coalesce(jsonb_object_agg(n.name, n.total), '{}') FROM (
                    SELECT v.key AS name,
                        sum(v.value::numeric) + coalesce((j.used -> w.writer -> 1 ->> v.key)::numeric, 0) AS total
                    FROM unnest(writers, usages) AS u (writer, usage) CROSS JOIN LATERAL jsonb_each(u.usage) v
                    WHERE u.writer = w.writer AND jsonb_typeof(v.value) = 'number'
                    GROUP BY v.key) n))) AS used
        FROM (SELECT u.writer, count(*) AS entries FROM unnest(writers) AS u (writer) GROUP BY u.writer) w
        CROSS JOIN (SELECT o.used FROM journals o WHERE o.journal_id = _journal) j
    ) added
    WHERE c.journal_id = _journal AND added.used IS NOT NULL;
END $$;

-- Removes entries that these journals need not keep, _room at most: of one journal after the other, until the next does not
-- fit. A journal of which nothing can be removed is put off, each time for longer. `upto`: the last journal that is finished.
-- With _dry, only counts the entries to remove.
CREATE FUNCTION cut_journals(
    _ids bigint[], _cutoff timestamptz, _entries bigint, _size bigint, _room bigint, _dry boolean,
    OUT removed bigint, OUT upto bigint
) LANGUAGE plpgsql
-- Planning costs more than the work for ten journals.
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    mine bigint[] := _ids;
    ids bigint[]; lows bigint[]; uptos bigint[]; sizes bigint[]; -- what goes: from behind `low` up to `upto`, with its bytes
    one record;
BEGIN
    IF NOT _dry THEN
        -- A locked journal is left for the next round, so that this one waits for no other transaction. A journal that is about
        -- to continue one of these holds a share of its key.
        SELECT array_agg(l.journal_id) INTO mine FROM (
            SELECT c.journal_id FROM journals c WHERE c.journal_id = ANY (_ids) ORDER BY c.journal_id FOR UPDATE SKIP LOCKED) l;
    END IF;
    SELECT array_agg(t.journal_id), array_agg(t.low), array_agg(t.last), array_agg(t.bytes), coalesce(sum(t.last - t.low), 0)
    INTO ids, lows, uptos, sizes, removed
    FROM (
        SELECT f.*, sum(f.last - f.low) OVER (ORDER BY f.journal_id) AS total
        FROM (
            SELECT j.journal_id, b.low, greatest(coalesce(o.last, i.last), b.low) AS last, coalesce(o.bytes, 0) AS bytes
            FROM journals j
            CROSS JOIN LATERAL (
                SELECT j.first_seq - 1 AS low, least(
                    (WITH RECURSIVE place AS (
                        SELECT j.journal_id, j.base_id, j.base_seq, j.last_seq AS upto
                        UNION ALL
                        SELECT b.journal_id, b.base_id, b.base_seq, least(p.upto, p.base_seq)
                        FROM place p JOIN journals b ON b.journal_id = p.base_id
                        WHERE p.base_seq > j.processed
                    )
                    SELECT min(w.seq) - 1
                    FROM place p CROSS JOIN LATERAL (
                        SELECT min(coalesce(e.request_seq, e.seq)) AS seq FROM journal_entries e
                        WHERE e.journal_id = p.journal_id AND e.is_input AND e.seq > j.processed AND e.seq <= p.upto) w),
                    (SELECT min(r.seq) - 1 FROM journal_requests r WHERE r.journal_id = j.journal_id),
                    (SELECT min(c.first_seq) - 1 FROM journals c
                     WHERE c.base_id = j.journal_id AND c.first_seq <= c.base_seq),
                    j.last_seq) AS high
                OFFSET 0
            ) b
            CROSS JOIN LATERAL (SELECT b.low + least(b.high - b.low, _room) AS high OFFSET 0) h
            CROSS JOIN LATERAL (
                SELECT CASE WHEN b.low < j.base_seq THEN greatest(b.low, least(h.high, j.base_seq, CASE
                    WHEN (j.created_at < _cutoff) IS TRUE OR (j.size > _size) IS TRUE THEN j.base_seq
                    ELSE coalesce(j.last_seq - _entries, 0) END)) ELSE b.low END AS last
                OFFSET 0
            ) i
            CROSS JOIN LATERAL (
                SELECT max(e.seq) FILTER (WHERE e.goes) AS last, sum(e.bytes) FILTER (WHERE e.goes) AS bytes
                FROM (
                    SELECT e.seq, e.bytes, bool_and(e.goes) OVER (ORDER BY e.seq) AS goes
                    FROM (
                        SELECT e.seq, octet_length(e.payload) AS bytes,
                            (e.recorded_at < _cutoff) IS TRUE OR (e.seq <= j.last_seq - _entries) IS TRUE
                            OR (j.size - sum(octet_length(e.payload)) OVER (ORDER BY e.seq) + octet_length(e.payload)
                                > _size) IS TRUE AS goes
                        FROM (
                            SELECT * FROM journal_entries n
                            WHERE n.journal_id = j.journal_id AND n.seq > i.last AND n.seq <= h.high
                              AND i.last >= coalesce(j.base_seq, 0)
                            ORDER BY n.seq LIMIT _room) e) e) e
                OFFSET 0
            ) o
            WHERE j.journal_id = ANY (mine)
        ) f
        ORDER BY f.journal_id
    ) t
    WHERE t.total <= _room;
    upto := CASE
        -- There may be more of the last of which something goes.
        WHEN removed >= _room THEN (SELECT max(g.id) - 1 FROM unnest(ids, lows, uptos) AS g (id, low, last) WHERE g.last > g.low)
        WHEN cardinality(ids) < cardinality(mine) THEN ids[cardinality(ids)]
        ELSE _ids[cardinality(_ids)] END;
    IF _dry OR ids IS NULL THEN
        RETURN;
    END IF;
    FOR one IN
        SELECT g.* FROM unnest(ids, lows, uptos) AS g (id, low, last)
        WHERE g.last > g.low AND (
            (SELECT j.base_seq > g.low FROM journals j WHERE j.journal_id = g.id) IS TRUE
            OR (SELECT true FROM journal_entries e
                WHERE e.journal_id = g.id AND e.seq > g.low AND e.seq <= g.last AND e.payload LIKE '%"usage"%' LIMIT 1))
    LOOP
        PERFORM keep_usage(one.id, one.low, one.last);
    END LOOP;
    WITH g AS MATERIALIZED (
        SELECT * FROM unnest(ids, lows, uptos, sizes) AS g (id, low, last, bytes)
    ), entries AS (
        DELETE FROM journal_entries e USING g WHERE e.journal_id = g.id AND e.seq > g.low AND e.seq <= g.last
    ), wakes AS (
        DELETE FROM journal_wakes w USING g
        WHERE w.journal_id = g.id AND w.processed < g.last AND w.seq <= g.last AND g.last > g.low
    ), freed AS MATERIALIZED (
        -- They may have waited for a journal that continues them.
        SELECT b.journal_id FROM g JOIN journals j ON j.journal_id = g.id JOIN journals b ON b.journal_id = j.base_id
        WHERE g.last > g.low AND b.kept_until IS NOT NULL AND b.journal_id <> ALL (ids)
        FOR NO KEY UPDATE OF b SKIP LOCKED
    ), awake AS (
        UPDATE journals b SET kept_until = NULL, kept_looks = 0 FROM freed f WHERE b.journal_id = f.journal_id
    )
    UPDATE journals c
    SET first_seq = g.last + 1, size = c.size - g.bytes,
        oldest_at = CASE WHEN g.last < c.base_seq OR g.last <= g.low THEN c.oldest_at ELSE coalesce(
            (SELECT e.recorded_at FROM journal_entries e WHERE e.journal_id = g.id AND e.seq > g.last
             ORDER BY e.seq LIMIT 1), clock()) END,
        kept_until = CASE WHEN g.stays THEN clock() + least(60 * 2 ^ c.kept_looks, 3600) * interval '1 s' END,
        kept_looks = CASE WHEN g.stays THEN least(c.kept_looks + 1, 6) ELSE 0 END
    FROM (
        SELECT g.*, g.last <= g.low AND NOT EXISTS (
            SELECT FROM g o JOIN journals f ON f.journal_id = o.id WHERE o.last > o.low AND f.base_id = g.id) AS stays
        FROM g) g
    WHERE c.journal_id = g.id;
END $$;

-- Removes old entries, one step at a time: of the first journals after _after that are over a bound. A step ends after _limit
-- entries, or _ms milliseconds: it keeps its journals locked for that long. `goes_on` is where the next step begins; NULL:
-- this was the last step. With _kept, it also looks at journals of which nothing could be removed lately.
CREATE FUNCTION prune_all_journals(
    _age float8, _entries bigint, _size bigint, _limit bigint, _after bigint, _ms bigint, _dry boolean, _kept boolean,
    OUT removed bigint, OUT goes_on bigint
) LANGUAGE plpgsql
-- The bounds decide which index serves.
SET plan_cache_mode = force_custom_plan SET search_path FROM CURRENT AS $$
DECLARE
    until timestamptz := clock_timestamp() + _ms * interval '1 ms';
    now timestamptz := clock();
    cutoff timestamptz := now - _age * interval '1 s';
    room bigint := CASE WHEN _dry THEN 9223372036854775807 ELSE _limit END;
    found bigint[];
    place int := 1;
    step record;
BEGIN
    removed := 0;
    goes_on := _after;
    found := ARRAY (
        SELECT a.journal_id FROM journals a
        WHERE a.oldest_at < cutoff AND a.journal_id > _after AND a.kept_until IS NULL AND a.session_id IS NOT NULL
        UNION
        SELECT s.journal_id FROM journals s
        WHERE s.size_class >= (ln(greatest(_size, 65536)::float8) * 4)::smallint AND s.size > _size
          AND s.journal_id > _after AND s.kept_until IS NULL AND s.session_id IS NOT NULL
        UNION
        SELECT n.journal_id FROM journals n
        WHERE n.entries_class >= (ln(greatest(_entries, 64)::float8) * 4)::smallint
          AND n.last_seq - n.first_seq >= _entries AND n.journal_id > _after
          AND n.kept_until IS NULL AND n.session_id IS NOT NULL
        UNION
        SELECT k.journal_id FROM journals k
        WHERE k.kept_until < (CASE WHEN _kept THEN 'infinity' ELSE now END) AND k.session_id IS NOT NULL
          AND k.journal_id > _after
          AND (k.oldest_at < cutoff OR k.size > _size OR k.last_seq - k.first_seq >= _entries)
        ORDER BY journal_id LIMIT 1000);
    WHILE place <= cardinality(found) LOOP
        SELECT * INTO step FROM cut_journals(found[place:place + 9], cutoff, _entries, _size, room - removed, _dry);
        removed := removed + step.removed;
        goes_on := step.upto;
        IF removed >= room THEN
            RETURN; -- there may be more of this journal
        END IF;
        WHILE found[place] <= goes_on LOOP
            place := place + 1;
        END LOOP;
        IF clock_timestamp() > until AND place <= cardinality(found) THEN
            RETURN;
        END IF;
    END LOOP;
    IF cardinality(found) < 1000 THEN
        goes_on := NULL;
    END IF;
END $$;

-- The same, without journals of which nothing could be removed lately.
CREATE FUNCTION prune_journals(
    _age float8, _entries bigint, _size bigint, _limit bigint, _after bigint, _ms bigint, _dry boolean,
    OUT removed bigint, OUT goes_on bigint
) LANGUAGE sql SET search_path FROM CURRENT AS $$
    SELECT * FROM prune_all_journals(_age, _entries, _size, _limit, _after, _ms, _dry, _dry)
$$;

-- Of these journals, those that nothing has changed since _cutoff and that nobody needs: see `WorkerProvider.sweep`.
CREATE FUNCTION find_resting(_ids bigint[], _cutoff timestamptz) RETURNS SETOF bigint LANGUAGE sql STABLE AS $$
    SELECT j.journal_id FROM journals j
    -- OFFSET 0: by the key, whatever statistics say.
    LEFT JOIN LATERAL (SELECT n.* FROM instances n WHERE n.instance_id = j.session_id OFFSET 0) i ON true
    WHERE j.journal_id = ANY (_ids) AND j.session_id IS NOT NULL AND j.updated_at < _cutoff
      AND (i.status IS NULL OR i.updated_at < _cutoff AND i.status IN ('completed', 'cancelled', 'pending', 'running'))
      AND (SELECT true FROM session_states r WHERE r.session_id = j.session_id AND r.updated_at >= _cutoff) IS NULL
      AND (SELECT true FROM journal_requests r WHERE r.journal_id = j.journal_id LIMIT 1) IS NULL
      AND (SELECT true FROM journal_revisits r WHERE r.journal_id = j.journal_id LIMIT 1) IS NULL
      AND (SELECT true FROM journal_delegations d WHERE d.journal_id = j.journal_id LIMIT 1) IS NULL
      AND (SELECT true FROM journal_delegations d WHERE d.child = j.session_id LIMIT 1) IS NULL
      AND (SELECT true FROM journals c
           WHERE c.parent = j.session_id AND c.parent_journal = j.journal_id AND c.session_id IS NOT NULL LIMIT 1) IS NULL
      AND (j.closed OR CASE WHEN j.processed < j.base_seq
           THEN (SELECT true FROM find_entries(
               j.journal_id, j.processed, j.last_seq + 1, '{}', NULL, NULL, true, false, 1)) IS NULL
           ELSE (SELECT true FROM journal_entries e
                 WHERE e.journal_id = j.journal_id AND e.is_input AND e.seq > j.processed LIMIT 1) IS NULL END)
      AND (SELECT true FROM worker_queue q WHERE q.instance_id = j.session_id LIMIT 1) IS NULL
      AND (SELECT true FROM worker_queue q WHERE q.session_id = j.session_id LIMIT 1) IS NULL
      AND (SELECT true FROM orchestrator_queue q WHERE q.instance_id = j.session_id LIMIT 1) IS NULL
      AND (SELECT true FROM instances c
           WHERE c.parent_id = j.session_id AND c.status NOT IN ('completed', 'failed', 'cancelled') LIMIT 1) IS NULL
      AND (SELECT true FROM held_sessions h WHERE h.session_id = j.session_id) IS NULL
      AND (SELECT true FROM session_holds h WHERE h.session_id = j.session_id AND h.until > clock() LIMIT 1) IS NULL
$$;

-- Removes journals that are still so, with their instances and records; returns their number. It waits for no lock.
CREATE FUNCTION remove_resting(_ids bigint[], _cutoff timestamptz) RETURNS bigint LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
DECLARE
    mine bigint[]; sessions_gone text[];
BEGIN
    -- As locked: the rows of instances and journals, so that no commit and no append changes them.
    SELECT array_agg(l.journal_id) INTO mine FROM (
        SELECT j.journal_id FROM journals j WHERE j.journal_id = ANY (_ids)
        ORDER BY j.session_id FOR UPDATE SKIP LOCKED) l;
    SELECT array_agg(j.journal_id), array_agg(j.session_id) INTO mine, sessions_gone
    FROM journals j LEFT JOIN (
        SELECT i.instance_id FROM instances i
        WHERE i.instance_id = ANY (ARRAY (SELECT s.session_id FROM journals s WHERE s.journal_id = ANY (mine)))
        ORDER BY i.instance_id FOR UPDATE SKIP LOCKED
    ) l ON l.instance_id = j.session_id
    WHERE j.journal_id = ANY (mine)
      AND (l.instance_id IS NOT NULL OR (SELECT true FROM instances i WHERE i.instance_id = j.session_id) IS NULL);
    SELECT array_agg(j.session_id) INTO sessions_gone
    FROM find_resting(mine, _cutoff) f (journal_id) JOIN journals j USING (journal_id);
    IF sessions_gone IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM delete_instances(sessions_gone, true, true);
    UPDATE sessions s SET epoch = nextval('epochs') WHERE s.session_id = ANY (sessions_gone);
    PERFORM delete_journals(sessions_gone);
    DELETE FROM session_states r WHERE r.session_id = ANY (sessions_gone);
    RETURN cardinality(sessions_gone);
END $$;

CREATE TRIGGER journal_deleted_with_record AFTER DELETE ON session_states
REFERENCING OLD TABLE AS deleted FOR EACH STATEMENT EXECUTE FUNCTION delete_journal_of_record();

-- Open delegations to instances end with these: they are runs of wakes, see `OpenDelegation`.
CREATE FUNCTION end_delegations() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    -- By a list: a join could be planned to read all delegations.
    DELETE FROM journal_delegations d
    WHERE d.child = ANY (ARRAY (SELECT g.instance_id FROM gone g)) AND d.delegation_id = d.child;
    RETURN NULL;
END $$;
CREATE TRIGGER delegations_ended_with_instance AFTER DELETE ON instances
REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION end_delegations();
