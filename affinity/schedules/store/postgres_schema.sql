-- Schedules.

CREATE TABLE schedules (
    name text COLLATE "C" PRIMARY KEY,
    generation text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,    -- the fence of each write
    spec text NOT NULL,          -- JSON, which the provider does not read
    app text COLLATE "C",        -- whose code declares it; NULL: a client created it
    code text COLLATE "C",       -- the version of that code
    paused text COLLATE "C",
    note text,
    next_due timestamptz,
    last_due timestamptz,
    running text COLLATE "C",    -- instance that the last tick has started
    queued timestamptz,          -- a tick that waits for the end of that instance
    queued_until timestamptz,    -- the later ticks up to then wait too, each for the end of the tick before
    retry_at timestamptz,        -- a due tick could not be fired, and is not due before this time
    skipped bigint NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX schedules_due ON schedules (greatest(next_due, retry_at)) WHERE next_due IS NOT NULL;
CREATE INDEX schedules_late ON schedules (next_due) WHERE next_due IS NOT NULL;
CREATE INDEX schedules_queued ON schedules (queued) WHERE queued IS NOT NULL;
CREATE INDEX schedules_app ON schedules (app, name) WHERE app IS NOT NULL;
CREATE INDEX schedules_ended ON schedules (updated_at)
WHERE next_due IS NULL AND paused IS NULL AND queued IS NULL AND app IS NULL;

-- True if the instance that a schedule's last tick has started still runs.
CREATE FUNCTION is_running(s schedules) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM instances i WHERE i.instance_id = s.running AND i.status IN ('pending', 'running', 'suspended'))
$$;

-- Seconds until a schedule is due, 0 or less if one is, or a queued tick may start; NULL: no schedule is active.
-- In the order of the indexes, which the planner uses then without statistics too.
CREATE FUNCTION next_schedule() RETURNS float8 LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(
        (SELECT 0::float8 FROM schedules s
         WHERE s.queued IS NOT NULL AND (s.retry_at > clock()) IS NOT true AND NOT is_running(s) ORDER BY s.queued LIMIT 1),
        (SELECT extract(epoch FROM greatest(s.next_due, s.retry_at) - clock())::float8 FROM schedules s
         WHERE s.next_due IS NOT NULL ORDER BY greatest(s.next_due, s.retry_at) LIMIT 1))
$$;

-- Writes schedules (rows of the table as JSON, times in Unix seconds, `n` counts them) and creates the instances that they
-- start (`_of`: for which `n`), all or none for each. Returns the `n` of what was written; or, when a quota refuses the
-- instances, nothing is written, and one row names it.
CREATE FUNCTION write_schedules(
    _rows json, _of bigint[], _instance text[], _generation text[], _name text[], _version text[], _start text[],
    _delay float8[], _session text[], _labels text[] = NULL
) RETURNS TABLE (n bigint, quota text, allowed bigint) LANGUAGE plpgsql AS $$
DECLARE
    known bigint[];
    refused record;
BEGIN
    PERFORM FROM schedules s
    WHERE s.name IN (SELECT w.name FROM json_to_recordset(_rows) AS w (name text)) ORDER BY s.name FOR UPDATE;
    known := ARRAY(
        SELECT w.n FROM json_to_recordset(_rows) AS w (n bigint, name text, generation text, revision bigint)
        JOIN schedules s ON s.name = w.name AND s.generation = w.generation AND s.revision = w.revision);
    SELECT c.quota, c.allowed INTO refused
    FROM create_instances(_instance, _generation, _name, _version, _start, _delay => _delay, _session => _session, _labels => _labels,
        _only => ARRAY(SELECT o.k FROM unnest(_of) WITH ORDINALITY AS o (n, k) WHERE o.n = ANY (known))) c
    WHERE c.n IS NULL;
    IF FOUND THEN
        RETURN QUERY SELECT NULL::bigint, refused.quota, refused.allowed;
        RETURN;
    END IF;
    RETURN QUERY WITH given AS MATERIALIZED (
        SELECT * FROM json_to_recordset(_rows) AS w (n bigint, removed boolean, name text, generation text, revision bigint,
            spec text, app text, code text, paused text, note text, next_due float8, last_due float8, running text,
            queued float8, queued_until float8, retry_at float8, skipped bigint)
    ), removed AS (
        DELETE FROM schedules s USING given w WHERE s.name = w.name AND w.n = ANY (known) AND w.removed
    ), changed AS (
        UPDATE schedules s
        SET revision = w.revision + 1, spec = w.spec, app = w.app, code = w.code, paused = w.paused, note = w.note,
            next_due = to_timestamp(w.next_due), last_due = to_timestamp(w.last_due), running = w.running,
            queued = to_timestamp(w.queued), queued_until = to_timestamp(w.queued_until),
            retry_at = to_timestamp(w.retry_at), skipped = w.skipped,
            updated_at = clock()
        FROM given w WHERE s.name = w.name AND w.n = ANY (known) AND NOT w.removed
    ), created AS (
        INSERT INTO schedules (name, generation, revision, spec, app, code, paused, note, next_due, last_due, running,
            queued, queued_until, retry_at, skipped, created_at, updated_at)
        SELECT w.name, w.generation, 1, w.spec, w.app, w.code, w.paused, w.note, to_timestamp(w.next_due),
            to_timestamp(w.last_due), w.running, to_timestamp(w.queued), to_timestamp(w.queued_until), to_timestamp(w.retry_at),
            w.skipped, clock(), clock()
        FROM given w WHERE w.revision = 0 ORDER BY w.name
        ON CONFLICT (name) DO NOTHING
        RETURNING schedules.name
    )
    SELECT w.n, NULL::text, NULL::bigint FROM given w
    WHERE w.n = ANY (known) OR w.revision = 0 AND w.name IN (SELECT c.name FROM created c);
END $$;

-- For clients, with the owner's rights.

-- Writes schedules as `write_schedules` does; only workers say which code declares one.
CREATE FUNCTION client_write_schedules(
    _rows json, _of bigint[], _instance text[], _generation text[], _name text[], _version text[], _start text[],
    _delay float8[], _session text[], _labels text[] = NULL
) RETURNS TABLE (n bigint, quota text, allowed bigint) LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    given record;
BEGIN
    PERFORM check_client_ids(_instance || _generation || _session);
    PERFORM check_client_starts(_start, _name, _version, _labels);
    PERFORM FROM schedules s
    WHERE s.name IN (SELECT w.name FROM json_to_recordset(_rows) AS w (name text)) ORDER BY s.name FOR UPDATE;
    FOR given IN
        SELECT w.*, s.name IS NOT NULL AS is_there, s.app AS former_app, s.code AS former_code
        FROM json_to_recordset(_rows) AS w (name text, generation text, revision bigint, spec text, app text, code text,
            running text)
        LEFT JOIN schedules s ON s.name = w.name AND s.generation = w.generation AND w.revision > 0
    LOOP
        CONTINUE WHEN given.revision > 0 AND NOT given.is_there; -- deleted since then: nothing is written
        PERFORM check_client_ids(ARRAY[given.name, given.generation, given.running]);
        IF jsonb_typeof(read_client_json(given.spec)) IS DISTINCT FROM 'object' OR octet_length(given.name) > 180 THEN
            PERFORM deny_client('write a schedule that no worker can read');
        ELSIF given.app IS DISTINCT FROM given.former_app OR given.code IS DISTINCT FROM given.former_code THEN
            PERFORM deny_client('write which code declares a schedule');
        END IF;
    END LOOP;
    RETURN QUERY SELECT w.n, w.quota, w.allowed FROM write_schedules(
        _rows, _of, _instance, _generation, _name, _version, _start, _delay, _session, _labels) w;
END $$;
