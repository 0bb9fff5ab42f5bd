-- Limits, and the work that waits at them. One transaction at a time admits work, and has the row of `limit_admissions` locked: it
-- alone writes the lines and the counts of keys. All others only add rows to the queues and to `limit_charges`, and mark work as
-- freed, so no commit waits for a row of a limit.

CREATE TABLE limit_admissions (
    cleaned_at timestamptz NOT NULL, -- when lines and keys without use were removed last
    drifts bigint NOT NULL DEFAULT 0 -- times that a count of work was too low: see `correct_count`
);
INSERT INTO limit_admissions (cleaned_at) VALUES ('-infinity');

-- A limit as the newest code of its app declares it. changes: what is changed while all runs, over what is declared: `concurrency`,
-- `rate` ([count, per, burst]); null there: no such bound.
CREATE TABLE limits (
    name text COLLATE "C" PRIMARY KEY,
    app text COLLATE "C" NOT NULL,
    code text COLLATE "C" NOT NULL,
    declared boolean NOT NULL, -- false: the newest code does not, and the limit holds nothing back
    keyed boolean NOT NULL,
    concurrency bigint,
    rate jsonb,
    aging float8 NOT NULL, -- seconds
    changes jsonb NOT NULL DEFAULT '{}',
    paused boolean NOT NULL DEFAULT false,
    ramp float8, -- slots that each second adds from resumed_at on; NULL: all are there
    resumed_at timestamptz,
    closed_until timestamptz,
    closed_for text,
    changed_by text,
    changed_at timestamptz,
    admitted bigint NOT NULL DEFAULT 0, -- of keys that were removed
    waited float8 NOT NULL DEFAULT 0
);

-- The keys of limits; the key of a limit without keys is empty.
CREATE TABLE limit_keys (
    key_id bigint PRIMARY KEY, -- one more than the greatest: no sequence, which a restore could leave behind its table
    limit_name text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    changes jsonb NOT NULL DEFAULT '{}',
    paused boolean NOT NULL DEFAULT false,
    ramp float8,
    resumed_at timestamptz,
    closed_until timestamptz,
    in_use bigint NOT NULL DEFAULT 0,
    waiting bigint NOT NULL DEFAULT 0,
    -- Uses of the rate: Unix seconds at which they began, in steps of a 64th of the window, and their units.
    used_at float8[] NOT NULL DEFAULT '{}',
    used_units bigint[] NOT NULL DEFAULT '{}',
    spaced_to float8 NOT NULL DEFAULT 0, -- Unix seconds up to which evenly spaced units are used
    virtual_times jsonb NOT NULL DEFAULT '{}', -- of the lines whose domain it is, by priority
    is_pending boolean NOT NULL DEFAULT false, -- its lines are to be looked at
    opens_at timestamptz, -- when they are, and those that are blocked on it, because time opens it
    admitted bigint NOT NULL DEFAULT 0,
    waited float8 NOT NULL DEFAULT 0, -- seconds, of all that was admitted
    last_admitted timestamptz,
    pace float8, -- seconds between two admissions, lately
    UNIQUE (limit_name, key)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX limit_keys_opens ON limit_keys (opens_at) WHERE opens_at IS NOT NULL;
CREATE INDEX limit_keys_pending ON limit_keys (key_id) WHERE is_pending;
CREATE INDEX limit_keys_waiting ON limit_keys (key_id) WHERE waiting > 0;

-- A line: work with one gate, in order of age. Lines of one domain, the first limit of the gate that has no keys, are served in the
-- order of their priorities, then of their virtual times, by weight.
CREATE TABLE limit_lines (
    line_id bigint PRIMARY KEY, -- as of keys
    gate_hash bytea NOT NULL UNIQUE, -- a gate may be too long for an index
    priority integer NOT NULL,
    keys bigint[] NOT NULL,
    units bigint[] NOT NULL,
    domain bigint NOT NULL,
    share bigint NOT NULL, -- the key whose share of the domain its work is
    weight float8 NOT NULL,
    waiting bigint NOT NULL DEFAULT 0,
    virtual_next float8 NOT NULL DEFAULT 0,
    oldest timestamptz, -- since when its first work waits
    blocked_on bigint, -- a key that has no room for its first work; NULL: it may be served
    used_at timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX limit_lines_ready ON limit_lines (domain, priority DESC, virtual_next, oldest, line_id)
    WHERE waiting > 0 AND blocked_on IS NULL;
CREATE INDEX limit_lines_oldest ON limit_lines (domain, priority, oldest) WHERE waiting > 0 AND blocked_on IS NULL;
CREATE INDEX limit_lines_blocked ON limit_lines (blocked_on, priority DESC, virtual_next) WHERE blocked_on IS NOT NULL;
CREATE INDEX limit_lines_share ON limit_lines (share, domain, priority) WHERE waiting > 0;

CREATE TABLE limit_line_keys (
    key_id bigint NOT NULL,
    line_id bigint NOT NULL,
    PRIMARY KEY (key_id, line_id)
);

-- Work that waits at its limits, or has slots there. Of an instance that waits to start: execution 0, activity -1.
-- is_freed: its row in the queue is gone, or has come back to the gate; the next admission counts that.
CREATE TABLE limited_work (
    instance_id text COLLATE "C" NOT NULL,
    execution_id bigint NOT NULL,
    activity_id integer NOT NULL,
    line_id bigint NOT NULL,
    since timestamptz NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY, -- an order among equals, and no identity: a restore may repeat it
    admitted_at timestamptz, -- NULL: it waits
    is_freed boolean NOT NULL DEFAULT false,
    PRIMARY KEY (instance_id, execution_id, activity_id)
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX limited_work_waiting ON limited_work (line_id, since, number) WHERE admitted_at IS NULL AND NOT is_freed;
CREATE INDEX limited_work_admitted ON limited_work (line_id) WHERE admitted_at IS NOT NULL AND NOT is_freed;
CREATE INDEX limited_work_freed ON limited_work (number) WHERE is_freed;

CREATE TABLE limit_charges (
    number bigint GENERATED ALWAYS AS IDENTITY, -- an order, and no identity: a restore may repeat it
    limit_name text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    units bigint NOT NULL
);

-- The bounds of each key that count now. NULL: there is no such bound.
CREATE VIEW limit_bounds AS
SELECT k.key_id, k.limit_name, k.key, k.in_use, k.used_at, k.used_units, k.spaced_to,
    l.paused AND l.declared OR k.paused AND coalesce(l.declared, false) AS is_paused,
    CASE WHEN l.declared THEN greatest(l.closed_until, k.closed_until) END AS closed_until,
    CASE WHEN NOT l.declared THEN NULL
         WHEN k.changes ? 'concurrency' THEN (k.changes ->> 'concurrency')::bigint
         WHEN l.changes ? 'concurrency' THEN (l.changes ->> 'concurrency')::bigint
         ELSE l.concurrency END AS concurrency,
    CASE WHEN NOT l.declared THEN NULL
         WHEN k.changes ? 'rate' THEN nullif(k.changes -> 'rate', 'null')
         WHEN l.changes ? 'rate' THEN nullif(l.changes -> 'rate', 'null')
         ELSE l.rate END AS rate,
    coalesce(k.ramp, l.ramp) AS ramp,
    CASE WHEN k.ramp IS NOT NULL THEN k.resumed_at ELSE l.resumed_at END AS resumed_at,
    coalesce(l.aging, 3600) AS aging
FROM limit_keys k LEFT JOIN limits l ON l.name = k.limit_name;

-- The uses of a rate that its window still has: in the last `_per` seconds, and in the step that ends there.
CREATE FUNCTION units_used(_at float8[], _units bigint[], _per float8, _now float8) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(sum(u.units), 0)::bigint FROM unnest(_at, _units) AS u (at, units) WHERE u.at > _now - _per * (65.0 / 64)
$$;

-- How many more pieces of work, each of so many units, a key has room for, and when it may have more. cause: what it lacks.
CREATE FUNCTION limit_room(_key bigint, _units bigint, OUT room bigint, OUT opens timestamptz, OUT cause text)
LANGUAGE plpgsql AS $$
DECLARE
    bound limit_bounds;
    moment timestamptz := clock();
    now_at float8 := extract(epoch FROM moment);
    slots bigint;
    ramped bigint;
    most bigint; per float8; burst bigint; used bigint; step float8; begun float8;
BEGIN
    SELECT * INTO bound FROM limit_bounds b WHERE b.key_id = _key;
    room := 1000000000;
    IF bound.is_paused THEN
        room := 0; cause := 'paused';
        RETURN;
    ELSIF bound.closed_until > moment THEN
        room := 0; cause := 'closed'; opens := bound.closed_until;
        RETURN;
    END IF;
    slots := bound.concurrency;
    IF bound.ramp IS NOT NULL THEN
        ramped := floor(least(1e9, bound.ramp * greatest(0, extract(epoch FROM moment - bound.resumed_at)) + 1));
        IF ramped < coalesce(slots, 1000000000) THEN
            slots := ramped;
            opens := moment + interval '1 s' / bound.ramp;
        END IF;
    END IF;
    IF slots IS NOT NULL THEN
        room := greatest(0, slots - bound.in_use);
        IF room = 0 THEN
            cause := 'concurrency';
            RETURN;
        END IF;
    END IF;
    opens := NULL;
    IF bound.rate IS NULL THEN
        RETURN;
    END IF;
    most := bound.rate ->> 0; per := bound.rate ->> 1; burst := bound.rate ->> 2;
    IF most <= 0 THEN
        room := 0; cause := 'paused';
        RETURN;
    END IF;
    IF burst IS NOT NULL THEN
        -- Evenly spaced, behind a burst: spaced_to is at most a burst ahead.
        step := per / most;
        begun := greatest(bound.spaced_to, now_at);
        IF _units > burst THEN
            room := least(room, (begun <= now_at)::int);
        ELSIF _units > 0 THEN
            room := least(room, floor((now_at + burst * step - begun) / (_units * step) + 1e-4)::bigint);
        END IF;
        IF room <= 0 THEN
            room := 0; cause := 'rate'; opens := to_timestamp(begun - (burst - least(_units, burst)) * step);
            RETURN;
        END IF;
    END IF;
    IF _units > 0 THEN
        used := units_used(bound.used_at, bound.used_units, per, now_at);
        room := least(room, CASE WHEN used = 0 THEN greatest(1, most / _units) ELSE (most - used) / _units END);
        IF room <= 0 THEN
            room := 0; cause := 'rate';
            -- When so many of the oldest uses have left the window that the next work fits.
            SELECT to_timestamp(min(u.at) + per * (65.0 / 64)) INTO opens
            FROM (
                SELECT w.at, sum(w.units) OVER (ORDER BY w.at, w.k ROWS UNBOUNDED PRECEDING) AS left_by
                FROM unnest(bound.used_at, bound.used_units) WITH ORDINALITY AS w (at, units, k)
                WHERE w.at > now_at - per * (65.0 / 64)
            ) u WHERE used - u.left_by <= greatest(0, most - _units);
        END IF;
    END IF;
END $$;

-- Counts units in the rate of a key, if it has one. _since: since when the work has waited: an admission that comes late, up to a
-- tenth of a second, does not move all later ones.
CREATE FUNCTION use_rate(_key bigint, _units bigint, _since timestamptz = NULL) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    bound limit_bounds;
    now_at float8 := extract(epoch FROM clock());
    most bigint; per float8; burst bigint; at float8; n integer;
BEGIN
    SELECT * INTO bound FROM limit_bounds b WHERE b.key_id = _key;
    IF bound.rate IS NULL OR _units <= 0 THEN
        RETURN;
    END IF;
    most := bound.rate ->> 0; per := bound.rate ->> 1; burst := bound.rate ->> 2;
    at := floor(now_at / (per / 64)) * (per / 64);
    n := cardinality(bound.used_at);
    UPDATE limit_keys k
    SET spaced_to = CASE WHEN burst IS NULL OR most <= 0 THEN k.spaced_to
                         ELSE greatest(k.spaced_to, now_at - least(0.1, per / 10, greatest(0, coalesce(
                             now_at - extract(epoch FROM _since)::float8, 0)))) + _units * per / most END,
        used_at = u.at, used_units = u.units
    FROM (
        SELECT array_agg(w.at ORDER BY w.at) AS at, array_agg(w.units ORDER BY w.at) AS units
        FROM (
            SELECT v.at, sum(v.units)::bigint AS units
            FROM (
                SELECT * FROM unnest(bound.used_at, bound.used_units) AS x (at, units)
                WHERE x.at > now_at - per * (65.0 / 64)
                UNION ALL SELECT at, _units
            ) v GROUP BY v.at
        ) w
    ) u
    WHERE k.key_id = _key;
END $$;

-- Returns the id of a key, and adds it if it is new.
CREATE FUNCTION limit_key_id(_limit text, _key text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    found bigint;
BEGIN
    SELECT k.key_id INTO found FROM limit_keys k WHERE k.limit_name = _limit AND k.key = _key;
    IF found IS NULL THEN
        INSERT INTO limit_keys (key_id, limit_name, key)
        VALUES (coalesce((SELECT max(k.key_id) FROM limit_keys k), 0) + 1, _limit, _key) RETURNING key_id INTO found;
    END IF;
    RETURN found;
END $$;

-- Adds the line of a gate: see affinity/orchestration/gates.py.
CREATE FUNCTION add_limit_line(_gate text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    gate jsonb := _gate::jsonb;
    ids bigint[] := '{}';
    counts bigint[] := '{}';
    use jsonb;
    domain bigint;
    share bigint;
    weight float8 := 1;
BEGIN
    FOR n IN 1 .. jsonb_array_length(gate) - 1 LOOP
        use := gate -> n;
        ids := ids || limit_key_id(use ->> 0, use ->> 1);
        counts := counts || (use ->> 2)::bigint;
        IF use ->> 1 = '' AND domain IS NULL THEN
            domain := ids[n];
        ELSIF use ->> 1 <> '' AND share IS NULL THEN
            share := ids[n];
            weight := (use ->> 3)::float8;
        END IF;
    END LOOP;
    WITH line AS (
        INSERT INTO limit_lines (line_id, gate_hash, priority, keys, units, domain, share, weight, used_at)
        VALUES (coalesce((SELECT max(l.line_id) FROM limit_lines l), 0) + 1, sha256(convert_to(_gate, 'UTF8')), (gate ->> 0)::integer, ids, counts, coalesce(domain, ids[1]),
            coalesce(share, ids[1]), weight, clock())
        RETURNING line_id
    )
    INSERT INTO limit_line_keys (key_id, line_id) SELECT DISTINCT i.id, line.line_id FROM unnest(ids) AS i (id), line;
END $$;

-- The count of work of a key or a line is lower than what leaves it: it has drifted, and is 0 from now on. Says so in the log of the
-- server, and counts it, so that no test overlooks it.
CREATE FUNCTION correct_count(_what text, _id bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    UPDATE limit_admissions SET drifts = drifts + 1;
    RAISE WARNING 'affinity: the count of work of % % was too low, and is corrected', _what, _id;
    RETURN 0;
END $$;

-- Takes work that is gone, or has come back, out of its line, and frees its slots. Returns how much there was.
CREATE FUNCTION count_freed_work(_most bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    lines bigint[]; held bigint[]; waited bigint[];
    freed bigint;
BEGIN
    WITH gone AS (
        DELETE FROM limited_work w WHERE w.ctid = ANY (ARRAY (
            SELECT f.ctid FROM limited_work f WHERE f.is_freed ORDER BY f.number LIMIT _most FOR UPDATE SKIP LOCKED))
        RETURNING w.line_id, w.admitted_at
    ), by_line AS (
        SELECT line_id, count(admitted_at) AS held, count(*) - count(admitted_at) AS waited FROM gone GROUP BY line_id
    )
    SELECT array_agg(line_id), array_agg(b.held), array_agg(b.waited), sum(b.held + b.waited)
    INTO lines, held, waited, freed FROM by_line b;
    IF freed IS NULL THEN
        RETURN 0;
    END IF;
    UPDATE limit_keys k
    SET in_use = CASE WHEN k.in_use >= f.held THEN k.in_use - f.held ELSE correct_count('key', k.key_id) END,
        waiting = CASE WHEN k.waiting >= f.waited THEN k.waiting - f.waited ELSE correct_count('key', k.key_id) END,
        opens_at = CASE WHEN f.held > 0 AND k.waiting > f.waited THEN '-infinity' ELSE k.opens_at END
    FROM (
        SELECT i.key_id, sum(g.held) AS held, sum(g.waited) AS waited
        FROM unnest(lines, held, waited) AS g (line_id, held, waited) JOIN limit_lines l USING (line_id)
        CROSS JOIN LATERAL unnest(l.keys) AS i (key_id) GROUP BY i.key_id
    ) f WHERE k.key_id = f.key_id;
    UPDATE limit_lines l
    SET waiting = CASE WHEN l.waiting >= g.waited THEN l.waiting - g.waited ELSE correct_count('line', l.line_id) END, oldest = (
            SELECT w.since FROM limited_work w WHERE w.line_id = l.line_id AND w.admitted_at IS NULL AND NOT w.is_freed
            ORDER BY w.since, w.number LIMIT 1),
        blocked_on = CASE WHEN l.waiting > g.waited THEN l.blocked_on END
    FROM unnest(lines, waited) AS g (line_id, waited) WHERE l.line_id = g.line_id AND g.waited > 0;
    RETURN freed;
END $$;

-- Lets lines be looked at again whose keys may have room now; returns these lines, and their keys.
CREATE FUNCTION open_limit_keys(_most bigint, OUT lines bigint[], OUT keys bigint[]) LANGUAGE plpgsql AS $$
DECLARE
    this bigint;
    there record;
    domains bigint[];
    opened bigint[];
BEGIN
    FOR this IN
        SELECT k.key_id FROM limit_keys k WHERE k.opens_at <= clock() ORDER BY k.opens_at, k.key_id LIMIT _most
    LOOP
        SELECT * INTO there FROM limit_room(this, 1);
        WITH opened AS MATERIALIZED (
            SELECT l.line_id FROM limit_lines l WHERE l.blocked_on = this
            ORDER BY l.priority DESC, l.virtual_next LIMIT least(there.room, _most)
        ), changed AS (
            UPDATE limit_lines l SET blocked_on = NULL FROM opened o WHERE l.line_id = o.line_id RETURNING l.line_id, l.domain
        )
        SELECT coalesce(array_agg(DISTINCT c.domain), '{}'), coalesce(array_agg(c.line_id), '{}') INTO domains, opened
        FROM changed c;
        lines := lines || opened;
        keys := keys || array_fill(this, ARRAY[cardinality(opened)]);
        UPDATE limit_keys k
        SET is_pending = k.is_pending OR k.key_id = ANY (domains) OR k.key_id = this AND there.room > 0,
            opens_at = CASE WHEN k.key_id = this THEN there.opens ELSE k.opens_at END
        WHERE k.key_id = this OR k.key_id = ANY (domains);
    END LOOP;
END $$;

-- The next line of a domain: of the priority that counts most, with what waiting adds; there the one that has got least of its share.
CREATE FUNCTION next_limit_line(_domain bigint) RETURNS limit_lines LANGUAGE plpgsql AS $$
DECLARE
    line limit_lines;
    lowest record;
    served integer;
BEGIN
    SELECT * INTO line FROM limit_lines l WHERE l.domain = _domain AND l.waiting > 0 AND l.blocked_on IS NULL
    ORDER BY l.priority DESC, l.virtual_next, l.oldest, l.line_id LIMIT 1;
    SELECT l.priority, l.oldest INTO lowest FROM limit_lines l
    WHERE l.domain = _domain AND l.waiting > 0 AND l.blocked_on IS NULL ORDER BY l.priority, l.oldest LIMIT 1;
    IF lowest.priority < line.priority THEN
        WITH RECURSIVE class (priority, oldest) AS (
            SELECT lowest.priority, lowest.oldest
            UNION ALL
            SELECT n.priority, n.oldest FROM class c CROSS JOIN LATERAL (
                SELECT l.priority, l.oldest FROM limit_lines l
                WHERE l.domain = _domain AND l.waiting > 0 AND l.blocked_on IS NULL AND l.priority > c.priority
                ORDER BY l.priority, l.oldest LIMIT 1
            ) n
        )
        SELECT c.priority INTO served
        FROM class c, (SELECT b.aging FROM limit_bounds b WHERE b.key_id = _domain) b
        ORDER BY c.priority + floor(extract(epoch FROM clock() - c.oldest) / b.aging) DESC, c.priority DESC LIMIT 1;
        IF served < line.priority THEN
            SELECT * INTO line FROM limit_lines l
            WHERE l.domain = _domain AND l.waiting > 0 AND l.blocked_on IS NULL AND l.priority = served
            ORDER BY l.virtual_next, l.oldest, l.line_id LIMIT 1;
        END IF;
    END IF;
    RETURN line;
END $$;

-- The answer of `admit_work`. routes: that work went to, `messages` for instances.
CREATE TYPE admitted_work AS (admitted bigint, routes text[], more boolean, next_due float8, waits boolean);

-- Lets the messages of instances go that may start, all by the same time earlier. A statement of its own: what senders have
-- committed before the rows of their instances were locked is seen (see `check_gate`).
CREATE FUNCTION let_messages_go(_instance text[], _priority integer[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE orchestrator_queue o
    SET route = 'new', visible_at = CASE WHEN o.visible_at <= clock()
        THEN o.visible_at - s.priority * interval '3600 s' ELSE o.visible_at END
    FROM unnest(_instance, _priority) AS s (instance_id, priority) WHERE o.instance_id = s.instance_id;
END $$;

-- Puts work that has come to its gate into its line; returns whether there may be more. What has a gate without limits goes on.
CREATE FUNCTION line_up_work(_most bigint, INOUT done admitted_work, OUT came_instance text[], OUT came_execution bigint[],
    OUT came_activity bigint[]) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    gates text[]; sinces timestamptz[]; number bigint; started bigint;
    new_gate text;
    there text[];
    passing text[]; priorities integer[];
BEGIN
    WITH came AS MATERIALIZED (
        SELECT q.instance_id, q.execution_id, q.activity_id::bigint, q.gate, q.limited, q.visible_at FROM worker_queue q
        WHERE q.route = 'gate' AND q.visible_at <= (SELECT clock())
          AND (q.limited IS NOT TRUE OR (
              SELECT true FROM limited_work w
              WHERE w.instance_id = q.instance_id AND w.execution_id = q.execution_id AND w.activity_id = q.activity_id)
              IS NULL)
        ORDER BY q.visible_at LIMIT _most FOR NO KEY UPDATE OF q SKIP LOCKED
    ), passed AS (
        -- Without limits: it has waited for time alone.
        UPDATE worker_queue q
        SET route = CASE WHEN q.session_id IS NULL THEN 'free' ELSE coalesce(
                (SELECT s.route FROM session_routes s WHERE s.session_id = q.session_id), 'new') END,
            visible_at = clock() - (q.gate::jsonb ->> 0)::float8 * interval '3600 s'
        FROM came f
        WHERE f.limited IS NOT TRUE
          AND q.instance_id = f.instance_id AND q.execution_id = f.execution_id AND q.activity_id = f.activity_id
        RETURNING q.route
    )
    SELECT array_agg(c.instance_id ORDER BY c.visible_at) FILTER (WHERE c.limited),
        array_agg(c.execution_id ORDER BY c.visible_at) FILTER (WHERE c.limited),
        array_agg(c.activity_id ORDER BY c.visible_at) FILTER (WHERE c.limited),
        array_agg(c.gate ORDER BY c.visible_at) FILTER (WHERE c.limited),
        array_agg(c.visible_at ORDER BY c.visible_at) FILTER (WHERE c.limited), count(*),
        (SELECT array_agg(DISTINCT p.route) FROM passed p), (SELECT count(*) FROM passed)
    INTO came_instance, came_execution, came_activity, gates, sinces, number, there, started FROM came c;
    done.routes := done.routes || there;
    done.admitted := done.admitted + started;
    done.more := done.more OR number >= _most;
    WITH came AS MATERIALIZED (
        SELECT o.instance_id, i.gate, i.limited, o.visible_at FROM orchestrator_queue o JOIN instances i USING (instance_id)
        WHERE o.route = 'gate' AND o.visible_at <= (SELECT clock()) AND i.gate IS NOT NULL
          AND NOT EXISTS (
              SELECT FROM limited_work w
              WHERE w.instance_id = o.instance_id AND w.execution_id = 0 AND w.activity_id = -1)
        -- Of both: a start that is replaced meanwhile has another time too.
        ORDER BY o.visible_at LIMIT _most FOR NO KEY UPDATE OF i, o SKIP LOCKED
    ), passed AS (
        -- A start with a priority alone, whose time has come.
        UPDATE instances i SET gate = NULL FROM came f WHERE f.limited IS NOT TRUE AND i.instance_id = f.instance_id
        RETURNING i.instance_id, (f.gate::jsonb ->> 0)::integer AS priority
    )
    SELECT came_instance || array_agg(c.instance_id ORDER BY c.visible_at) FILTER (WHERE c.limited),
        came_execution || array_agg(0::bigint) FILTER (WHERE c.limited),
        came_activity || array_agg(-1::bigint) FILTER (WHERE c.limited),
        gates || array_agg(c.gate ORDER BY c.visible_at) FILTER (WHERE c.limited),
        sinces || array_agg(c.visible_at ORDER BY c.visible_at) FILTER (WHERE c.limited), count(*),
        (SELECT array_agg(p.instance_id ORDER BY p.instance_id) FROM passed p),
        (SELECT array_agg(p.priority ORDER BY p.instance_id) FROM passed p)
    INTO came_instance, came_execution, came_activity, gates, sinces, started, passing, priorities FROM came c;
    IF passing IS NOT NULL THEN
        PERFORM let_messages_go(passing, priorities);
        done.admitted := done.admitted + cardinality(passing);
        done.routes := done.routes || ARRAY['messages'];
    END IF;
    done.more := done.more OR started >= _most;
    IF came_instance IS NULL THEN
        RETURN;
    END IF;
    FOR new_gate IN
        SELECT DISTINCT g.gate FROM unnest(gates) AS g (gate)
        WHERE NOT EXISTS (SELECT FROM limit_lines l WHERE l.gate_hash = sha256(convert_to(g.gate, 'UTF8')))
    LOOP
        PERFORM add_limit_line(new_gate);
    END LOOP;
    WITH added AS (
        INSERT INTO limited_work (instance_id, execution_id, activity_id, line_id, since)
        SELECT came_instance[c.k], came_execution[c.k], came_activity[c.k], l.line_id, c.since
        FROM unnest(gates, sinces) WITH ORDINALITY AS c (gate, since, k)
        JOIN limit_lines l ON l.gate_hash = sha256(convert_to(c.gate, 'UTF8'))
        ORDER BY c.since, c.k
        RETURNING line_id, since
    ), by_line AS MATERIALIZED (
        SELECT a.line_id, count(*) AS n, min(a.since) AS oldest FROM added a GROUP BY a.line_id
    ), by_key AS MATERIALIZED (
        SELECT i.key_id, sum(b.n) AS n, bool_or(i.key_id = l.domain AND l.blocked_on IS NULL) AS is_pending
        FROM by_line b JOIN limit_lines l USING (line_id) CROSS JOIN LATERAL unnest(l.keys) AS i (key_id)
        GROUP BY i.key_id
    ), keys AS (
        UPDATE limit_keys k SET waiting = k.waiting + b.n, is_pending = k.is_pending OR b.is_pending
        FROM by_key b WHERE k.key_id = b.key_id
    )
    UPDATE limit_lines l
    SET waiting = l.waiting + b.n, oldest = least(l.oldest, b.oldest), used_at = clock(),
        -- A line that begins to wait has no claim to what was served before.
        virtual_next = CASE WHEN l.waiting > 0 THEN l.virtual_next ELSE greatest(
            l.virtual_next, (SELECT (d.virtual_times ->> l.priority::text)::float8 FROM limit_keys d WHERE d.key_id = l.domain),
            (SELECT max(s.virtual_next) FROM limit_lines s
             WHERE s.share = l.share AND s.domain = l.domain AND s.priority = l.priority AND s.waiting > 0)) END
    FROM by_line b WHERE l.line_id = b.line_id;
END $$;

-- Gives the first work of a line its slots, up to so much of it; returns how much got them. A row that another transaction has locked
-- is being removed, and is skipped.
CREATE FUNCTION admit_line(_line limit_lines, _most bigint, INOUT done admitted_work) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    places text[]; started text[];
    served bigint; seconds float8;
    moment timestamptz := clock();
    ahead interval := _line.priority * interval '3600 s';
BEGIN
    WITH first AS MATERIALIZED (
        SELECT w.instance_id, w.execution_id, w.activity_id, w.number FROM limited_work w
        WHERE w.line_id = _line.line_id AND w.admitted_at IS NULL AND NOT w.is_freed
        ORDER BY w.since, w.number LIMIT _most
    ), item AS MATERIALIZED (
        SELECT q.instance_id, q.execution_id, q.activity_id, f.number
        FROM first f JOIN worker_queue q
            ON q.instance_id = f.instance_id AND q.execution_id = f.execution_id AND q.activity_id = f.activity_id
        WHERE q.limited AND q.route IN ('gate', 'gated') FOR NO KEY UPDATE OF q SKIP LOCKED
    ), start AS MATERIALIZED (
        -- Of both: a start that is replaced meanwhile has left its line.
        SELECT i.instance_id, f.number
        FROM first f JOIN instances i ON i.instance_id = f.instance_id
        JOIN limited_work w ON w.instance_id = f.instance_id AND w.execution_id = 0 AND w.activity_id = -1
        WHERE f.activity_id = -1 AND i.gate IS NOT NULL AND w.line_id = _line.line_id AND NOT w.is_freed
        FOR NO KEY UPDATE OF i, w SKIP LOCKED
    ), sent AS (
        UPDATE worker_queue q
        SET session_id = q.gate_session, route = CASE WHEN q.gate_session IS NULL THEN 'free' ELSE coalesce(
                (SELECT s.route FROM session_routes s WHERE s.session_id = q.gate_session), 'new') END,
            visible_at = moment - ahead - coalesce(q.passed_over, 0) * interval '1 s' + row.n * interval '1 us',
            waits_since = moment - coalesce(q.passed_over, 0) * interval '1 s',
            attend_at = moment + (least(q.takeover_after, q.fail_after) - coalesce(q.passed_over, 0)) * interval '1 s'
        FROM (SELECT i.*, row_number() OVER (ORDER BY i.number) AS n FROM item i) row
        WHERE q.instance_id = row.instance_id AND q.execution_id = row.execution_id AND q.activity_id = row.activity_id
        RETURNING q.instance_id, q.execution_id, q.activity_id, q.route
    ), opened AS (
        UPDATE instances i SET gate = NULL FROM start s WHERE i.instance_id = s.instance_id RETURNING i.instance_id
    ), admitted AS (
        UPDATE limited_work w SET admitted_at = moment
        FROM (
            SELECT s.instance_id, s.execution_id, s.activity_id, s.route FROM sent s
            UNION ALL SELECT o.instance_id, 0, -1, 'messages' FROM opened o
        ) g
        WHERE w.instance_id = g.instance_id AND w.execution_id = g.execution_id AND w.activity_id = g.activity_id
        RETURNING g.route, w.since
    )
    SELECT count(*), array_agg(DISTINCT a.route), sum(extract(epoch FROM moment - a.since)),
        (SELECT array_agg(o.instance_id) FROM opened o)
    INTO served, places, seconds, started FROM admitted a;
    IF served = 0 THEN
        RETURN;
    END IF;
    IF started IS NOT NULL THEN
        PERFORM let_messages_go(started, array_fill(_line.priority, ARRAY[cardinality(started)]));
    END IF;
    done.admitted := done.admitted + served;
    done.routes := done.routes || places;
    UPDATE limit_keys k
    SET in_use = k.in_use + served, admitted = k.admitted + served,
        waiting = CASE WHEN k.waiting >= served THEN k.waiting - served ELSE correct_count('key', k.key_id) END,
        waited = k.waited + seconds, last_admitted = moment,
        pace = CASE WHEN k.last_admitted IS NULL THEN k.pace
                    ELSE coalesce(k.pace, 0) * 0.8 + 0.2 * CASE WHEN k.pace IS NULL THEN 5 ELSE 1 END
                       * greatest(0, extract(epoch FROM moment - k.last_admitted)) / served END,
        virtual_times = CASE WHEN k.key_id = _line.domain THEN k.virtual_times || jsonb_build_object(_line.priority, greatest(
                (k.virtual_times ->> _line.priority::text)::float8, _line.virtual_next + (served - 1) / _line.weight))
            ELSE k.virtual_times END
    WHERE k.key_id = ANY (_line.keys);
    PERFORM use_rate(u.key_id, u.units * served, _line.oldest)
    FROM unnest(_line.keys, _line.units) AS u (key_id, units);
    UPDATE limit_lines l
    SET waiting = CASE WHEN l.line_id <> _line.line_id THEN l.waiting WHEN l.waiting >= served THEN l.waiting - served
                       ELSE correct_count('line', l.line_id) END,
        virtual_next = greatest(l.virtual_next, _line.virtual_next + served / _line.weight),
        oldest = CASE WHEN l.line_id = _line.line_id THEN (
            SELECT w.since FROM limited_work w WHERE w.line_id = _line.line_id AND w.admitted_at IS NULL AND NOT w.is_freed
            ORDER BY w.since, w.number LIMIT 1) ELSE l.oldest END
    WHERE l.share = _line.share AND l.domain = _line.domain AND l.priority = _line.priority AND l.waiting > 0;
END $$;

-- Admits work of the lines of a domain, until it has no room, or no line.
CREATE FUNCTION admit_domain(_domain bigint, _most bigint, INOUT done admitted_work) LANGUAGE plpgsql AS $$
DECLARE
    line limit_lines;
    next_time float8;
    there record;
    most bigint;
    before bigint;
    blocked bigint;
BEGIN
    LOOP
        IF done.admitted >= _most THEN
            done.more := true;
            RETURN;
        END IF;
        line := next_limit_line(_domain);
        IF line.line_id IS NULL THEN
            UPDATE limit_keys SET is_pending = false WHERE key_id = _domain;
            RETURN;
        END IF;
        most := least(line.waiting, _most - done.admitted);
        blocked := NULL;
        -- The domain first: while it has no room, no line needs to be looked at.
        FOR n IN 0 .. cardinality(line.keys) LOOP
            CONTINUE WHEN n > 0 AND line.keys[n] = _domain;
            SELECT * INTO there FROM limit_room(
                CASE n WHEN 0 THEN _domain ELSE line.keys[n] END,
                line.units[CASE n WHEN 0 THEN array_position(line.keys, _domain) ELSE n END]);
            most := least(most, there.room);
            IF there.room <= 0 THEN
                blocked := CASE n WHEN 0 THEN _domain ELSE line.keys[n] END;
                EXIT;
            END IF;
        END LOOP;
        IF blocked = _domain THEN
            UPDATE limit_keys SET is_pending = false, opens_at = there.opens WHERE key_id = _domain;
            RETURN;
        ELSIF blocked IS NOT NULL THEN
            UPDATE limit_lines SET blocked_on = blocked WHERE line_id = line.line_id;
            -- Another key of the line has kept room for it, which other lines may be blocked on.
            UPDATE limit_keys k
            SET opens_at = CASE WHEN k.key_id = blocked THEN coalesce(least(k.opens_at, there.opens), there.opens)
                                ELSE '-infinity' END
            WHERE k.key_id = blocked OR k.key_id = ANY (line.keys) AND k.key_id <> _domain
                AND EXISTS (SELECT FROM limit_lines l WHERE l.blocked_on = k.key_id);
            CONTINUE;
        END IF;
        -- As much as its share allows before another line is next.
        SELECT l.virtual_next INTO next_time FROM limit_lines l
        WHERE l.domain = _domain AND l.waiting > 0 AND l.blocked_on IS NULL AND l.priority = line.priority
          AND l.line_id <> line.line_id
        ORDER BY l.virtual_next LIMIT 1;
        IF next_time IS NOT NULL THEN
            most := least(most, floor(greatest(0, next_time - line.virtual_next) * line.weight)::bigint + 1);
        END IF;
        before := done.admitted;
        done := admit_line(line, most, done);
        IF done.admitted = before THEN -- all of it is being removed: look again soon
            UPDATE limit_keys SET is_pending = false, opens_at = clock() + interval '10 ms' WHERE key_id = _domain;
            RETURN;
        END IF;
    END LOOP;
END $$;

-- Seconds until work may be admitted: 0 or less if some may be now; NULL: nothing waits for time. _freed: freed slots are to be
-- counted too. Without _all, work that no worker takes is left out, unless it fails at last.
CREATE FUNCTION next_admission(_freed boolean = true, _all boolean = true) RETURNS float8 LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT extract(epoch FROM min(n.at) - clock())::float8 FROM (
        SELECT clock() AS at FROM limited_work WHERE is_freed AND _freed
        UNION ALL
        SELECT clock() FROM limit_charges
        UNION ALL
        SELECT clock() FROM limit_keys WHERE is_pending
        UNION ALL
        (SELECT greatest(opens_at, clock()) FROM limit_keys WHERE opens_at IS NOT NULL ORDER BY opens_at LIMIT 1)
        UNION ALL
        (SELECT visible_at FROM worker_queue
         WHERE route = 'gate' AND (_all OR passed_over IS NULL OR fail_after IS NOT NULL) ORDER BY visible_at LIMIT 1)
        UNION ALL
        (SELECT visible_at FROM orchestrator_queue WHERE route = 'gate' ORDER BY visible_at LIMIT 1)) n);
END $$;

-- Admits work: see `LimitProvider.admit`.
-- Its statements look rows up by key, whatever the planner believes of tables that are full now and empty a moment later.
CREATE FUNCTION admit_work(_most bigint, _if_waiting boolean = false) RETURNS admitted_work LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_bitmapscan = off AS $$
DECLARE
    done admitted_work := (0, '{}', false, NULL, true);
    came record;
    opened record;
    this record;
BEGIN
    IF _if_waiting AND NOT EXISTS (SELECT FROM limit_keys k WHERE k.waiting > 0) THEN
        done.next_due := next_admission(false);
        IF (done.next_due <= 0) IS NOT TRUE THEN
            done.waits := false;
            RETURN done; -- without the lock, so that work of commits passes its gates
        END IF;
    END IF;
    PERFORM FROM limit_admissions FOR NO KEY UPDATE;
    IF count_freed_work(4 * _most) >= 4 * _most THEN
        done.more := true;
        RETURN done;
    END IF;
    FOR this IN DELETE FROM limit_charges WHERE ctid = ANY (ARRAY (SELECT c.ctid FROM limit_charges c ORDER BY c.number LIMIT _most))
                RETURNING limit_name, key, units LOOP
        PERFORM use_rate(limit_key_id(this.limit_name, this.key), this.units);
    END LOOP;
    -- While others wait for slots or a rate that come now, a few at a time, as the work of a large commit would delay them.
    SELECT * INTO came FROM line_up_work(
        CASE WHEN EXISTS (SELECT FROM limit_keys k WHERE k.opens_at <= clock() + interval '100 ms') THEN least(_most, 50)
             ELSE _most END, done);
    done := came.done;
    SELECT * INTO opened FROM open_limit_keys(_most);
    FOR this IN SELECT k.key_id FROM limit_keys k WHERE k.is_pending ORDER BY k.last_admitted NULLS FIRST, k.key_id LIMIT _most LOOP
        done := admit_domain(this.key_id, _most, done);
        EXIT WHEN done.admitted >= _most;
    END LOOP;
    -- A line that was let go, and whose domain has no room, leaves the room of its key to the next lines that are blocked there.
    UPDATE limit_keys k SET opens_at = '-infinity'
    WHERE k.key_id = ANY (ARRAY (
            SELECT o.key_id FROM unnest(opened.lines, opened.keys) AS o (line_id, key_id) JOIN limit_lines l USING (line_id)
            WHERE l.waiting > 0 AND l.blocked_on IS NULL))
      AND EXISTS (SELECT FROM limit_lines b WHERE b.blocked_on = k.key_id);
    UPDATE worker_queue q SET route = 'gated'
    FROM unnest(came.came_instance, came.came_execution, came.came_activity) AS c (instance_id, execution_id, activity_id)
    WHERE q.instance_id = c.instance_id AND q.execution_id = c.execution_id AND q.activity_id = c.activity_id
      AND q.route = 'gate';
    UPDATE orchestrator_queue o SET route = 'gated'
    FROM unnest(came.came_instance, came.came_activity) AS c (instance_id, activity_id)
    WHERE c.activity_id = -1 AND o.instance_id = c.instance_id AND o.route = 'gate';
    done.more := done.more OR EXISTS (SELECT FROM limit_keys k WHERE k.opens_at <= clock() OR k.is_pending);
    done.routes := ARRAY (SELECT DISTINCT r.name FROM unnest(done.routes) AS r (name) WHERE r.name IS NOT NULL);
    done.next_due := next_admission();
    done.waits := EXISTS (SELECT FROM limit_keys k WHERE k.waiting > 0);
    RETURN done;
END $$;

-- New work that a commit queues passes where no other work waits and there is room: then it needs no admission, and may be locked
-- with the commit. All of it waits instead while another transaction admits, which no commit waits for.
CREATE OR REPLACE FUNCTION pass_gates(_instance text[], _execution bigint[], _activity bigint[], _gate text[]) RETURNS boolean[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    passed boolean[] := array_fill(false, ARRAY[cardinality(_gate)]); -- else it would begin where the first one is set
    this record;
    line limit_lines;
    most bigint;
    moment timestamptz;
BEGIN
    -- A large commit takes long, and would keep the lock until its end: nothing else could be admitted until then.
    IF cardinality(_gate) > 250 AND (SELECT count(g.gate) > 250 FROM unnest(_gate) AS g (gate)) THEN
        RETURN NULL;
    END IF;
    PERFORM FROM limit_admissions FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND OR EXISTS (SELECT FROM limit_charges) THEN
        RETURN NULL;
    END IF;
    IF count_freed_work(1000) >= 1000 THEN
        RETURN NULL; -- more of it may have the names of new work
    END IF;
    moment := clock();
    FOR this IN
        SELECT g.gate, array_agg(g.k ORDER BY g.k) AS places FROM unnest(_gate) WITH ORDINALITY AS g (gate, k)
        WHERE g.gate IS NOT NULL GROUP BY g.gate LIMIT 50 -- those of other gates wait for an admission
    LOOP
        SELECT * INTO line FROM limit_lines l WHERE l.gate_hash = sha256(convert_to(this.gate, 'UTF8'));
        IF NOT FOUND THEN
            PERFORM add_limit_line(this.gate);
            SELECT * INTO line FROM limit_lines l WHERE l.gate_hash = sha256(convert_to(this.gate, 'UTF8'));
        END IF;
        CONTINUE WHEN (SELECT true FROM limit_keys k WHERE k.key_id = ANY (line.keys) AND k.waiting > 0 LIMIT 1);
        most := cardinality(this.places);
        FOR n IN 1 .. cardinality(line.keys) LOOP
            most := least(most, (SELECT r.room FROM limit_room(line.keys[n], line.units[n]) r));
            EXIT WHEN most <= 0;
        END LOOP;
        CONTINUE WHEN most <= 0;
        INSERT INTO limited_work (instance_id, execution_id, activity_id, line_id, since, admitted_at)
        SELECT _instance[p.k], _execution[p.k], _activity[p.k], line.line_id, moment, moment
        FROM unnest(this.places[:most]) AS p (k);
        UPDATE limit_keys k SET in_use = k.in_use + most, admitted = k.admitted + most, last_admitted = moment
        WHERE k.key_id = ANY (line.keys);
        PERFORM use_rate(u.key_id, u.units * most) FROM unnest(line.keys, line.units) AS u (key_id, units);
        UPDATE limit_lines l SET used_at = moment
        WHERE l.line_id = line.line_id AND l.used_at < moment - interval '60 s';
        FOR n IN 1 .. most LOOP
            passed[this.places[n]] := true;
        END LOOP;
    END LOOP;
    RETURN passed;
END $$;

-- Puts work back whose lock has expired, and work that no worker has fetched though other work waits for its slots. That pauses for
-- about as long as it was passed over: for `_untaken` to `_pause` seconds, and not beyond its end.
CREATE FUNCTION return_slots(_untaken float8, _pause float8, _most bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    returned bigint;
BEGIN
    WITH lost AS MATERIALIZED (
        SELECT q.instance_id, q.execution_id, q.activity_id, q.lock_token IS NULL AS is_untaken, q.passed_over, q.fail_after, greatest(
            0, extract(epoch FROM clock() - greatest(coalesce(q.waits_since, w.admitted_at), q.locked_at)))::float8 AS waited
        FROM limited_work w JOIN worker_queue q
            ON q.instance_id = w.instance_id AND q.execution_id = w.execution_id AND q.activity_id = w.activity_id
        WHERE w.admitted_at IS NOT NULL AND NOT w.is_freed AND q.limited AND q.route NOT IN ('gate', 'gated', 'blocked')
          AND CASE WHEN q.lock_token IS NOT NULL THEN q.locked_until <= clock() OR NOT EXISTS (
                  SELECT FROM alive_workers a WHERE a.worker_id = q.lock_worker AND a.incarnation = q.lock_incarnation)
                  AND NOT is_alive(q.lock_worker, q.lock_incarnation)
              ELSE w.admitted_at < clock() - _untaken * interval '1 s' AND EXISTS (
                  SELECT FROM limit_lines l CROSS JOIN LATERAL unnest(l.keys) AS i (key_id)
                  JOIN limit_keys k ON k.key_id = i.key_id JOIN limit_bounds b ON b.key_id = i.key_id
                  -- It takes the last slot from others. Of a rate alone it takes nothing, and would only use it again.
                  WHERE l.line_id = w.line_id AND k.waiting > 0 AND k.in_use >= b.concurrency) END
        -- Of both: work that has come back and was admitted again meanwhile is other work.
        LIMIT _most FOR NO KEY UPDATE OF q, w SKIP LOCKED
    ), gone AS (
        UPDATE worker_queue q
        SET route = 'gate', gate_session = coalesce(q.session_id, q.gate_session), session_id = NULL, lock_worker = NULL,
            lock_incarnation = NULL, lock_token = NULL, locked_until = NULL, attend_at = NULL,
            -- Interrupted work keeps its age.
            visible_at = CASE WHEN l.is_untaken THEN clock() + p.pause * interval '1 s'
                              ELSE least(q.enqueued_at, q.visible_at) END,
            passed_over = CASE WHEN l.is_untaken THEN l.waited + p.pause END
        FROM lost l CROSS JOIN LATERAL (
            SELECT greatest(0, least(greatest(_untaken, l.passed_over), _pause, l.fail_after - l.waited)) AS pause) p
        WHERE q.instance_id = l.instance_id AND q.execution_id = l.execution_id AND q.activity_id = l.activity_id
        RETURNING 1
    )
    SELECT count(*) INTO returned FROM gone;
    RETURN returned;
END $$;

-- Removes lines and keys that were not used for an hour; once a minute.
CREATE FUNCTION remove_unused_limit_keys(_most bigint) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE limit_admissions SET cleaned_at = clock() WHERE cleaned_at < clock() - interval '60 s';
    IF NOT FOUND THEN
        RETURN;
    END IF;
    WITH idle AS MATERIALIZED (
        SELECT l.line_id FROM limit_lines l
        WHERE l.waiting = 0 AND l.used_at < clock() - interval '1 h'
          AND NOT EXISTS (SELECT FROM limited_work w WHERE w.line_id = l.line_id AND w.admitted_at IS NOT NULL AND NOT w.is_freed)
          AND NOT EXISTS (SELECT FROM limited_work w WHERE w.line_id = l.line_id AND w.is_freed)
        LIMIT _most
    ), keys AS (
        DELETE FROM limit_line_keys k USING idle i WHERE k.line_id = i.line_id
    )
    DELETE FROM limit_lines l USING idle i WHERE l.line_id = i.line_id;
    WITH idle AS (
        DELETE FROM limit_keys k
        WHERE k.key_id IN (
            SELECT c.key_id FROM limit_keys c
            WHERE c.in_use = 0 AND c.waiting = 0 AND c.changes = '{}' AND NOT c.paused AND c.ramp IS NULL
              AND (c.closed_until > clock()) IS NOT TRUE
              AND coalesce(c.last_admitted, '-infinity') < clock() - interval '1 h'
              AND c.spaced_to < extract(epoch FROM clock())
              AND NOT EXISTS (SELECT FROM limit_line_keys i WHERE i.key_id = c.key_id)
              AND (SELECT units_used(b.used_at, b.used_units, (b.rate ->> 1)::float8, extract(epoch FROM clock())::float8)
                   FROM limit_bounds b WHERE b.key_id = c.key_id AND b.rate IS NOT NULL) IS NOT DISTINCT FROM
                  (SELECT 0::bigint FROM limit_bounds b WHERE b.key_id = c.key_id AND b.rate IS NOT NULL)
            LIMIT _most)
        RETURNING k.limit_name, k.admitted, k.waited
    )
    UPDATE limits l SET admitted = l.admitted + s.admitted, waited = l.waited + s.waited
    FROM (SELECT i.limit_name, sum(i.admitted) AS admitted, sum(i.waited) AS waited FROM idle i GROUP BY i.limit_name) s
    WHERE l.name = s.limit_name;
END $$;

-- Writes the limits that code declares.
CREATE FUNCTION declare_limits(_app text, _code text, _limits jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    written bigint;
    removed bigint;
BEGIN
    PERFORM FROM limit_admissions FOR NO KEY UPDATE;
    INSERT INTO limits AS l (name, app, code, declared, keyed, concurrency, rate, aging)
    SELECT d ->> 'name', _app, _code, true, (d ->> 'keyed')::boolean, (d ->> 'concurrency')::bigint,
        nullif(d -> 'rate', 'null'), (d ->> 'aging')::float8
    FROM jsonb_array_elements(_limits) AS d ORDER BY d ->> 'name'
    ON CONFLICT (name) DO UPDATE
    SET app = _app, code = excluded.code, declared = true, keyed = excluded.keyed, concurrency = excluded.concurrency,
        rate = excluded.rate, aging = excluded.aging
    WHERE (l.app = _app OR NOT l.declared) AND (l.app, l.code, l.declared, l.keyed, l.concurrency, l.rate, l.aging)
        IS DISTINCT FROM (_app, excluded.code, true, excluded.keyed, excluded.concurrency, excluded.rate, excluded.aging);
    GET DIAGNOSTICS written = ROW_COUNT;
    UPDATE limits l SET declared = false, code = _code
    WHERE l.app = _app AND l.declared AND l.name NOT IN (SELECT d ->> 'name' FROM jsonb_array_elements(_limits) AS d);
    GET DIAGNOSTICS removed = ROW_COUNT;
    IF written + removed = 0 THEN
        RETURN; -- as each worker does again and again
    END IF;
    UPDATE limit_keys k SET opens_at = '-infinity' FROM limits l
    WHERE l.name = k.limit_name AND l.app = _app AND k.waiting > 0;
END $$;

-- Closes limits, or keys of them, for some seconds.
CREATE FUNCTION close_limits(_limit text[], _key text[], _seconds float8[], _reason text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    this bigint;
BEGIN
    PERFORM FROM limit_admissions FOR NO KEY UPDATE;
    FOR n IN 1 .. cardinality(_limit) LOOP
        CONTINUE WHEN NOT EXISTS (SELECT FROM limits l WHERE l.name = _limit[n] AND l.declared);
        IF _key[n] = '' THEN
            UPDATE limits l
            SET closed_until = clock() + _seconds[n] * interval '1 s', closed_for = _reason[n]
            WHERE l.name = _limit[n]
              AND (l.closed_until > clock() + _seconds[n] * interval '1 s') IS NOT TRUE;
        ELSE
            this := limit_key_id(_limit[n], _key[n]); -- a statement of its own: it may add the key
            UPDATE limit_keys k SET closed_until = greatest(k.closed_until, clock() + _seconds[n] * interval '1 s')
            WHERE k.key_id = this;
        END IF;
    END LOOP;
END $$;

CREATE FUNCTION charge_limits(_limit text[], _key text[], _units bigint[]) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    INSERT INTO limit_charges (limit_name, key, units)
    SELECT c.name, c.key, c.units FROM unnest(_limit, _key, _units) AS c (name, key, units)
    WHERE EXISTS (SELECT FROM limits l WHERE l.name = c.name AND l.declared)
$$;

-- Changes limits while all runs: see `LimitChange`. Returns the positions of those that are declared. A client's role calls it.
CREATE FUNCTION change_limits(_changes jsonb) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    change jsonb;
    this bigint;
BEGIN
    PERFORM FROM limit_admissions FOR NO KEY UPDATE;
    FOR n IN 1 .. jsonb_array_length(_changes) LOOP
        change := _changes -> (n - 1);
        IF (change -> 'concurrency') <> 'null' AND ((change ->> 'concurrency')::numeric BETWEEN 0 AND 2147483647) IS NOT TRUE
           OR (change -> 'rate') <> 'null' AND ((change #>> '{rate,0}')::numeric BETWEEN 0 AND 1e15
               AND (change #>> '{rate,1}')::float8 BETWEEN 0.001 AND 316224000
               AND (change #>> '{rate,2}' IS NULL OR (change #>> '{rate,2}')::numeric BETWEEN 1 AND 1e15)) IS NOT TRUE
           OR (change ->> 'ramp')::float8 <= 0 OR octet_length(change ->> 'key') > 256 OR octet_length(change ->> 'by') > 256
        THEN
            PERFORM deny_client('change a limit to a bound that no worker can use');
        END IF;
        IF change ->> 'key' IS NULL THEN
            UPDATE limits l
            SET changes = CASE WHEN (change ->> 'reset')::boolean THEN '{}' ELSE l.changes END
                    || jsonb_strip_absent(change),
                paused = coalesce((change ->> 'paused')::boolean, CASE WHEN (change ->> 'reset')::boolean THEN false ELSE l.paused END),
                ramp = CASE WHEN change ->> 'paused' IS NOT NULL OR (change ->> 'reset')::boolean
                            THEN (change ->> 'ramp')::float8 ELSE l.ramp END,
                resumed_at = CASE WHEN change ->> 'ramp' IS NOT NULL THEN clock() ELSE l.resumed_at END,
                closed_until = CASE WHEN (change ->> 'paused')::boolean IS false OR (change ->> 'reset')::boolean THEN NULL
                                    ELSE l.closed_until END,
                changed_by = change ->> 'by', changed_at = clock()
            WHERE l.name = change ->> 'limit';
            CONTINUE WHEN NOT FOUND;
        ELSE
            CONTINUE WHEN NOT EXISTS (SELECT FROM limits l WHERE l.name = change ->> 'limit');
            this := limit_key_id(change ->> 'limit', change ->> 'key');
            UPDATE limit_keys k
            SET changes = CASE WHEN (change ->> 'reset')::boolean THEN '{}' ELSE k.changes END
                    || jsonb_strip_absent(change),
                paused = coalesce((change ->> 'paused')::boolean, CASE WHEN (change ->> 'reset')::boolean THEN false ELSE k.paused END),
                ramp = CASE WHEN change ->> 'paused' IS NOT NULL OR (change ->> 'reset')::boolean
                            THEN (change ->> 'ramp')::float8 ELSE k.ramp END,
                resumed_at = CASE WHEN change ->> 'ramp' IS NOT NULL THEN clock() ELSE k.resumed_at END,
                closed_until = CASE WHEN (change ->> 'paused')::boolean IS false OR (change ->> 'reset')::boolean THEN NULL
                                    ELSE k.closed_until END
            WHERE k.key_id = this;
            UPDATE limits l SET changed_by = change ->> 'by', changed_at = clock() WHERE l.name = change ->> 'limit';
        END IF;
        UPDATE limit_keys k SET opens_at = '-infinity'
        WHERE k.limit_name = change ->> 'limit' AND (change ->> 'key' IS NULL OR k.key = change ->> 'key') AND k.waiting > 0;
        RETURN NEXT n;
    END LOOP;
END $$;

-- The bounds of a change that are given: those that are left out stay as they are.
CREATE FUNCTION jsonb_strip_absent(_change jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(jsonb_object_agg(c.key, c.value), '{}') FROM jsonb_each(_change) AS c
    WHERE c.key IN ('concurrency', 'rate')
$$;

-- Marks work whose row is removed, or has come back to its gate. The next admission takes it out of its line.
CREATE FUNCTION free_limited_work() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE limited_work w SET is_freed = true
    WHERE w.instance_id = OLD.instance_id AND w.execution_id = OLD.execution_id AND w.activity_id = OLD.activity_id
      AND NOT w.is_freed;
    RETURN NULL;
END $$;

CREATE FUNCTION free_limited_instance() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    UPDATE limited_work w SET is_freed = true
    WHERE w.instance_id = OLD.instance_id AND w.execution_id = 0 AND w.activity_id = -1 AND NOT w.is_freed;
    RETURN NULL;
END $$;

CREATE TRIGGER limited_work_removed AFTER DELETE ON worker_queue FOR EACH ROW
WHEN (OLD.limited) EXECUTE FUNCTION free_limited_work();
CREATE TRIGGER limited_work_returned AFTER UPDATE OF route ON worker_queue FOR EACH ROW
WHEN (NEW.route = 'gate' AND OLD.route <> 'gate' AND NEW.limited) EXECUTE FUNCTION free_limited_work();
CREATE TRIGGER limited_instance_ended AFTER UPDATE OF status, limited ON instances FOR EACH ROW
WHEN (OLD.limited AND (NEW.status IN ('completed', 'failed', 'cancelled') OR NEW.limited IS NOT TRUE))
EXECUTE FUNCTION free_limited_instance();
CREATE TRIGGER limited_instance_removed AFTER DELETE ON instances FOR EACH ROW
WHEN (OLD.limited) EXECUTE FUNCTION free_limited_instance();
