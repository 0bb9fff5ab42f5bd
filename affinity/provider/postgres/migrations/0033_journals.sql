-- Journals of sessions: see affinity/journal.py.

-- session_id: NULL when it was deleted, and other journals continue it. base_id, base_seq: the journal that it continues, up
-- to that number. first_seq: the first entry that is kept. size: bytes of the payloads of its own entries. dropped_seq: the
-- last entry that dropped requests. ended_wake, ended_attempt: the last attempt of which a stream has ended. oldest_at: no
-- entry of its own is older. All that changes with each entry is in no index.
CREATE TABLE journals (
    journal_id bigint PRIMARY KEY,
    session_id text COLLATE "C",
    kind text COLLATE "C" NOT NULL,
    parent text COLLATE "C",
    first_seq bigint NOT NULL DEFAULT 1,
    last_seq bigint NOT NULL DEFAULT 0,
    processed bigint NOT NULL DEFAULT 0,
    closed boolean NOT NULL DEFAULT false,
    base_id bigint,
    base_seq bigint,
    size bigint NOT NULL DEFAULT 0,
    dropped_seq bigint NOT NULL DEFAULT 0,
    ended_wake text COLLATE "C",
    ended_attempt bigint,
    oldest_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
) WITH (fillfactor = 60, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);
CREATE UNIQUE INDEX journals_session ON journals (session_id);
CREATE INDEX journals_created ON journals (created_at, session_id) WHERE session_id IS NOT NULL;
CREATE INDEX journals_kind ON journals (kind, created_at, session_id) WHERE session_id IS NOT NULL;
CREATE INDEX journals_parent ON journals (parent, created_at, session_id) WHERE parent IS NOT NULL AND session_id IS NOT NULL;
CREATE INDEX journals_base ON journals (base_id, base_seq) WHERE base_id IS NOT NULL;
CREATE INDEX journals_oldest ON journals (oldest_at);

CREATE TABLE journal_entries (
    journal_id bigint NOT NULL,
    seq bigint NOT NULL,
    recorded_at timestamptz NOT NULL,
    is_input boolean NOT NULL,
    kind text COLLATE "C" NOT NULL,
    event_id text COLLATE "C",
    wake_id text COLLATE "C",
    payload text NOT NULL,
    PRIMARY KEY (journal_id, seq)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE UNIQUE INDEX journal_entries_event ON journal_entries (journal_id, event_id) WHERE event_id IS NOT NULL;
CREATE INDEX journal_entries_kind ON journal_entries (journal_id, kind, seq);
CREATE INDEX journal_entries_wake ON journal_entries (journal_id, wake_id, seq) WHERE wake_id IS NOT NULL;
CREATE INDEX journal_entries_inputs ON journal_entries (journal_id, seq) WHERE is_input;

-- seq: the first entry that was appended with it. place: of those that were added with it.
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

-- The number of the entry with an event id in the journals that a journal continues.
CREATE FUNCTION find_inherited_event(_journal bigint, _event text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT e.seq FROM journal_segments(_journal) s
        JOIN journal_entries e ON e.journal_id = s.journal_id AND e.event_id = _event AND e.seq > s.low AND e.seq <= s.high
        WHERE s.depth > 1 AND e.seq >= (SELECT j.first_seq FROM journals j WHERE j.journal_id = _journal)
        LIMIT 1);
END $$;

-- The numbers of entries that meet all conditions, in the given order, and the journals whose own they are. One segment
-- after the other, each by the index of the condition that the fewest entries meet.
CREATE FUNCTION find_entries_1(_journal bigint, _after bigint, _before bigint, _kinds text[], _wake text, _event text,
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

-- Creates the journals and instances of those elements of a batch that have none, in the order of locks: the first element
-- of each session that may start one. With the rights of its caller, `append_journals_1`.
CREATE FUNCTION start_journals(
    _session text[], _kind text[], _entry_kind text[], _event text[], _sender text[], _start_name text[], _start text[],
    _start_birth text[], _start_version text[], _start_journal bigint[], _start_parent text[], _only bigint[]
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    missing bigint[]; -- places of elements that need an instance
    wanted bigint[];  -- places of elements that need a journal
    refused boolean;
    created bigint[];
    one bigint;
BEGIN
    SELECT array_agg(f.k ORDER BY f.session_id) FILTER (WHERE f.needs_instance),
        array_agg(f.k ORDER BY f.session_id) FILTER (WHERE f.needs_journal)
    INTO missing, wanted
    FROM (
        SELECT DISTINCT ON (s.session_id) s.session_id, s.k, i.instance_id IS NULL AS needs_instance,
            j.journal_id IS NULL AS needs_journal
        FROM unnest(_session) WITH ORDINALITY AS s (session_id, k)
        LEFT JOIN instances i ON i.instance_id = s.session_id
        LEFT JOIN journals j ON j.session_id = s.session_id
        WHERE _start_name[s.k] IS NOT NULL AND (_only IS NULL OR s.k = ANY (_only))
          AND (i.instance_id IS NULL OR j.journal_id IS NULL)
          AND (i.instance_id IS NULL OR i.name = _start_name[s.k] AND i.status IN ('pending', 'running', 'suspended'))
          AND CASE WHEN j.journal_id IS NULL THEN _entry_kind[s.k] IS NOT NULL
                   ELSE j.kind = _kind[s.k] AND NOT j.closed AND NOT EXISTS (
                       SELECT FROM journal_entries e WHERE e.journal_id = j.journal_id AND e.event_id = _event[s.k]) END
          AND (_sender[s.k] IS NULL
               OR _sender[s.k] = CASE WHEN j.journal_id IS NULL THEN _start_parent[s.k] ELSE j.parent END)
        ORDER BY s.session_id, s.k) f;
    IF missing IS NOT NULL THEN
        -- No quota refuses what a wake starts.
        WITH created AS (
            INSERT INTO instances (instance_id, birth, name, version, session_id, created_at, updated_at)
            SELECT _session[m.k], _start_birth[m.k], _start_name[m.k], _start_version[m.k], _session[m.k], c.now, c.now
            FROM unnest(missing) WITH ORDINALITY AS m (k, place) CROSS JOIN (SELECT clock() AS now) c
            WHERE _sender[m.k] IS NOT NULL ORDER BY m.place
            ON CONFLICT (instance_id) DO NOTHING
            RETURNING instance_id
        )
        INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
        SELECT c.instance_id, 'new', (SELECT clock()), _start[m.k]
        FROM unnest(missing) AS m (k) JOIN created c ON c.instance_id = _session[m.k];
        missing := ARRAY (
            SELECT m.k FROM unnest(missing) WITH ORDINALITY AS m (k, place) WHERE _sender[m.k] IS NULL ORDER BY m.place);
    END IF;
    IF cardinality(missing) > 0 THEN
        -- A quota refuses all of a batch: then each is tried on its own.
        SELECT bool_or(c.quota IS NOT NULL) INTO refused FROM create_instances_1(
            ARRAY (SELECT _session[m.k] FROM unnest(missing) AS m (k)),
            ARRAY (SELECT _start_birth[m.k] FROM unnest(missing) AS m (k)),
            ARRAY (SELECT _start_name[m.k] FROM unnest(missing) AS m (k)),
            ARRAY (SELECT _start_version[m.k] FROM unnest(missing) AS m (k)),
            ARRAY (SELECT _start[m.k] FROM unnest(missing) AS m (k)),
            array_fill(NULL::text, ARRAY[cardinality(missing)]), array_fill(NULL::text, ARRAY[cardinality(missing)]),
            array_fill(0::float8, ARRAY[cardinality(missing)]),
            array_fill(NULL::text, ARRAY[cardinality(missing)]), array_fill(NULL::text, ARRAY[cardinality(missing)]),
            ARRAY (SELECT _session[m.k] FROM unnest(missing) AS m (k))) c;
        IF refused AND cardinality(missing) > 1 THEN
            FOREACH one IN ARRAY missing LOOP
                PERFORM FROM create_instances_1(
                    ARRAY[_session[one]], ARRAY[_start_birth[one]], ARRAY[_start_name[one]], ARRAY[_start_version[one]],
                    ARRAY[_start[one]], ARRAY[NULL::text], ARRAY[NULL::text], ARRAY[0::float8], ARRAY[NULL::text],
                    ARRAY[NULL::text], ARRAY[_session[one]]);
            END LOOP;
        END IF;
    END IF;
    IF wanted IS NOT NULL THEN
        WITH added AS (
            INSERT INTO journals (journal_id, session_id, kind, parent, oldest_at, created_at, updated_at)
            SELECT _start_journal[w.k], i.instance_id, _kind[w.k], _start_parent[w.k], c.now, c.now, c.now
            FROM unnest(wanted) AS w (k) CROSS JOIN (SELECT clock() AS now) c
            JOIN instances i ON i.instance_id = _session[w.k] AND i.name = _start_name[w.k]
            ORDER BY i.instance_id
            ON CONFLICT (session_id) DO NOTHING
            RETURNING journal_id
        )
        SELECT array_agg(a.journal_id) INTO created FROM added a;
    END IF;
    RETURN created;
END $$;

-- Appends to journals: see `JournalAppend`. A batch in which a session is named more than once is done in rounds, of which
-- each names it one time. With the rights of the role that migrated: a client needs none to any table for it, and writes
-- nothing else. Columns that a batch has no use for are NULL; those of one group are all there or none of them: starts,
-- and what is rare. With `_only`, elements at other places are left out. Returns what became of each element that was
-- done, by its place.
--
-- Rows are locked in the order of all verbs: instances, journals, each by key.
CREATE FUNCTION append_journals_1(
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
    fresh bigint[];  -- journals that this batch has created
    at bigint[];     -- of one round: places,
    ids bigint[];    -- journals,
    found text[];    -- outcomes, NULL: it passes,
    numbers bigint[]; -- and numbers
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
        SELECT array_agg(a.k), array_agg(a.journal_id), array_agg(a.outcome), array_agg(a.seq)
        INTO at, ids, found, numbers
        FROM (
            SELECT s.k, j.journal_id, coalesce(e.seq, j.last_seq + (_entry_kind[s.k] IS NOT NULL)::int) AS seq,
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
        -- The quota and the number of unread messages are those of messages; so is the text.
        IF EXISTS (SELECT FROM unnest(at, found) AS p (k, outcome) WHERE p.outcome IS NULL AND _message[p.k] IS NOT NULL)
        THEN
            accepted := ARRAY (
                SELECT p.x FROM unnest(at, found) WITH ORDINALITY AS p (k, outcome, x)
                WHERE p.outcome IS NULL AND _message[p.k] IS NOT NULL ORDER BY p.x);
            SELECT array_agg(CASE m.delivery WHEN 'finished' THEN 'closed' WHEN 'delivered' THEN NULL
                             ELSE coalesce(m.delivery, 'raced') END ORDER BY a.x)
            INTO refused
            FROM unnest(accepted) WITH ORDINALITY AS a (x, n)
            LEFT JOIN send_messages_1(
                ARRAY (SELECT _session[at[a.x]] FROM unnest(accepted) AS a (x)),
                array_fill(NULL::text, ARRAY[cardinality(accepted)]),
                ARRAY (SELECT replace(_message[at[a.x]], '"$SEQ"', numbers[a.x]::text) FROM unnest(accepted) AS a (x)),
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

-- Writes what wakes add to their journals: see `JournalWrite`. The writes come in the order of the keys of their sessions, at
-- most one of each. An entry belongs to the write of number _entry_write, and is the one of number _entry_place there;
-- _added and _size are the number of a write's entries and their bytes. Columns that a batch has no use for are NULL. `_rare`
-- has requests, revisits, and those that end. `_also` has the sessions of other journals that the statement appends to
-- afterwards: all are locked together. With `_only`, writes of other numbers are left out.
CREATE FUNCTION write_journals_1(
    _session text[], _journal bigint[], _base bigint[], _processed bigint[], _wake text[], _attempt bigint[],
    _added bigint[], _size bigint[],
    _entry_write bigint[], _entry_place bigint[], _entry_kind text[], _entry_wake text[], _entry text[],
    _entry_event text[] = NULL, _entry_input boolean[] = NULL, _clear bigint[] = NULL, _rare json = NULL,
    _also text[] = NULL, _only bigint[] = NULL
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    passed bigint;
    cleared bigint[];
BEGIN
    IF _entry_event IS NOT NULL OR _also IS NOT NULL THEN
        PERFORM FROM journals j WHERE j.session_id = ANY (_session || _also) ORDER BY j.session_id FOR NO KEY UPDATE;
    END IF;
    IF _entry_event IS NOT NULL THEN
        -- Entries whose event id is there are left out, and so are others with the same one behind the first.
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
    WITH written AS (
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
    IF _clear IS NOT NULL THEN
        cleared := ARRAY (SELECT _journal[c.n] FROM unnest(_clear) AS c (n) WHERE _only IS NULL OR c.n = ANY (_only));
        DELETE FROM journal_streams s WHERE s.journal_id = ANY (cleared);
    END IF;
    IF _rare IS NOT NULL THEN
        DELETE FROM journal_requests r USING json_to_recordset(_rare -> 'ended_requests') AS x (n bigint, id text)
        WHERE r.journal_id = _journal[x.n] AND r.request_id = x.id AND (_only IS NULL OR x.n = ANY (_only));
        DELETE FROM journal_revisits r USING json_to_recordset(_rare -> 'ended_revisits') AS x (n bigint, key text)
        WHERE r.journal_id = _journal[x.n] AND r.key = x.key AND (_only IS NULL OR x.n = ANY (_only));
        INSERT INTO journal_requests (journal_id, request_id, kind, wake_id, seq, place, created_at, expires_at, payload)
        SELECT j.journal_id, x.id, x.kind, _wake[x.n], least(j.last_seq - _added[x.n] + 1, j.last_seq), x.k, c.now,
            c.now + x.expires_in * interval '1 s', x.payload
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

-- Deletes journals, but for entries that others continue; and those deleted before that no journal continues, or names as
-- its parent, any more. Returns their sessions.
CREATE FUNCTION delete_journals_1(_session text[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    gone bigint[];
    deleted text[];
    freed bigint[];
    kept bigint[];
BEGIN
    -- Who makes a journal that continues one of these locks its row too.
    SELECT array_agg(l.journal_id), array_agg(l.session_id) INTO gone, deleted
    FROM (
        SELECT j.journal_id, j.session_id FROM journals j
        WHERE j.session_id = ANY (_session) ORDER BY j.session_id FOR UPDATE) l;
    UPDATE journals j SET session_id = NULL, updated_at = clock() WHERE j.journal_id = ANY (gone);
    DELETE FROM journal_requests r WHERE r.journal_id = ANY (gone);
    DELETE FROM journal_revisits r WHERE r.journal_id = ANY (gone);
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
    -- Of those that are kept, what is behind the last entry that another one continues.
    DELETE FROM journal_entries e
    USING (
        SELECT j.journal_id, (SELECT max(f.base_seq) FROM journals f WHERE f.base_id = j.journal_id) AS seq
        FROM journals j WHERE j.session_id IS NULL AND j.journal_id = ANY (kept)) k
    WHERE e.journal_id = k.journal_id AND e.seq > coalesce(k.seq, 0);
    RETURN deleted;
END $$;

-- Removes up to _limit of the oldest entries of journals, as far as no wake has to process them, and no request and no other
-- journal needs them; how many. Limits that are NULL are none. By age alone, journals are found by an index. Entries that a
-- journal continues are as old as the journal and have no size; they are removed from it, not from their own journal.
CREATE FUNCTION prune_journals_1(_age float8, _entries bigint, _size bigint, _limit bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    cutoff timestamptz := clock() - _age * interval '1 s';
    rest bigint := _limit;
    one bigint;
    j journals;
    low bigint;    -- behind what is removed already
    high bigint;   -- the last that may be removed
    upto bigint;   -- the last that is
    own bigint;    -- the same of its own
    bytes bigint;
BEGIN
    FOR one IN
        SELECT c.journal_id FROM journals c
        WHERE c.session_id IS NOT NULL AND c.first_seq <= c.last_seq
          AND (_age IS NOT NULL AND c.oldest_at < cutoff OR _size IS NOT NULL AND c.size > _size
               OR _entries IS NOT NULL AND c.last_seq - c.first_seq >= _entries)
          AND NOT EXISTS (
              SELECT FROM journals f WHERE f.base_id = c.journal_id AND f.first_seq <= least(f.base_seq, c.first_seq))
    LOOP
        -- In no order, so those that are locked are left for the next time. A journal that is about to continue this one
        -- holds a share of its key.
        SELECT * INTO j FROM journals c WHERE c.journal_id = one FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        low := j.first_seq - 1;
        high := least((
            WITH RECURSIVE place AS (
                SELECT j.journal_id, j.base_id, j.base_seq, j.last_seq AS upto
                UNION ALL
                SELECT b.journal_id, b.base_id, b.base_seq, least(p.upto, p.base_seq)
                FROM place p JOIN journals b ON b.journal_id = p.base_id
                WHERE p.base_seq > j.processed
            )
            SELECT min(i.seq) - 1
            FROM place p CROSS JOIN LATERAL (
                SELECT e.seq FROM journal_entries e
                WHERE e.journal_id = p.journal_id AND e.is_input AND e.seq > j.processed AND e.seq <= p.upto
                ORDER BY e.seq LIMIT 1) i),
            (SELECT min(r.seq) - 1 FROM journal_requests r WHERE r.journal_id = one),
            (SELECT min(f.first_seq) - 1 FROM journals f WHERE f.base_id = one AND f.first_seq <= f.base_seq),
            j.last_seq, low + rest);
        upto := low;
        IF low < j.base_seq THEN
            upto := greatest(low, least(high, j.base_seq, CASE
                WHEN (j.created_at < cutoff) IS TRUE OR (j.size > _size) IS TRUE THEN j.base_seq
                ELSE coalesce(j.last_seq - _entries, 0) END));
        END IF;
        bytes := 0;
        IF upto >= coalesce(j.base_seq, 0) AND upto < high THEN
            SELECT max(e.seq) FILTER (WHERE e.goes), coalesce(sum(e.bytes) FILTER (WHERE e.goes), 0) INTO own, bytes
            FROM (
                SELECT e.seq, e.bytes, bool_and(e.goes) OVER (ORDER BY e.seq) AS goes
                FROM (
                    SELECT e.seq, octet_length(e.payload) AS bytes,
                        (e.recorded_at < cutoff) IS TRUE OR (e.seq <= j.last_seq - _entries) IS TRUE
                        OR (j.size - sum(octet_length(e.payload)) OVER (ORDER BY e.seq) + octet_length(e.payload)
                            > _size) IS TRUE AS goes
                    FROM (
                        SELECT * FROM journal_entries o
                        WHERE o.journal_id = one AND o.seq > upto AND o.seq <= high ORDER BY o.seq LIMIT rest) e) e) e;
            upto := coalesce(own, upto);
        END IF;
        CONTINUE WHEN upto <= low;
        DELETE FROM journal_entries e WHERE e.journal_id = one AND e.seq > low AND e.seq <= upto;
        UPDATE journals c
        SET first_seq = upto + 1, size = c.size - bytes, oldest_at = CASE WHEN upto < c.base_seq THEN c.oldest_at ELSE coalesce(
            (SELECT e.recorded_at FROM journal_entries e WHERE e.journal_id = one AND e.seq > upto ORDER BY e.seq LIMIT 1),
            clock()) END
        WHERE c.journal_id = one;
        rest := rest - (upto - low);
        EXIT WHEN rest <= 0;
    END LOOP;
    RETURN _limit - rest;
END $$;

-- With the record of the session: by a trigger, so that a deletion by the release before deletes the journal too.
CREATE FUNCTION delete_journal_of_record() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF EXISTS (SELECT FROM deleted d JOIN journals j USING (session_id)) THEN
        PERFORM delete_journals_1(ARRAY (SELECT d.session_id FROM deleted d));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER journal_deleted_with_record AFTER DELETE ON session_states
REFERENCING OLD TABLE AS deleted FOR EACH STATEMENT EXECUTE FUNCTION delete_journal_of_record();

-- Clients and workers append by it, and no other role.
DO $do$
DECLARE
    function regprocedure;
BEGIN
    SELECT p.oid::regprocedure INTO function FROM pg_proc p
    WHERE p.proname = 'append_journals_1' AND p.pronamespace = current_schema::regnamespace;
    EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', function, current_schema);
    EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', function);
END $do$;
