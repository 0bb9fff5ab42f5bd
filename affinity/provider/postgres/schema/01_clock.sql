-- The clock, the timeline and the settings of this database.
--
-- Everything lives in the schema that search_path names first, so no statement of this provider names a schema. A function
-- that runs with the owner's rights keeps the search_path of its creation: this schema, and the schema of temporary tables
-- last, since that comes first where it is not named.
SELECT set_config('search_path', quote_ident(current_schema) || ', pg_temp', true);

-- The one clock. PostgreSQL inlines the call, so it costs nothing; tests replace it (PostgresProvider.advance_clock).
-- VOLATILE on purpose: a condition that is checked again after a lock wait reads the time again.
CREATE FUNCTION clock() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE AS 'SELECT clock_timestamp()';

-- How a statement takes back what it has written so far: errors.py makes it a contention. The message is for the server's
-- log.
CREATE FUNCTION refuse() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION 'affinity: not every turn of a batch passes; now each is judged by itself' USING ERRCODE = 'ZT001';
END $$;

-- Migrations that were applied: see affinity/provider/schema.py.
CREATE TABLE migrations (
    version integer PRIMARY KEY,
    oldest_code integer NOT NULL,
    release text COLLATE "C" NOT NULL, -- of affinity, that applied it
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Which database this is, and which line of its history: see affinity/provider/timeline.py. One row.
CREATE TABLE timeline (
    token text COLLATE "C" NOT NULL, -- random
    place text COLLATE "C" NOT NULL -- what PostgreSQL itself said when the token was made
);

-- The server, the database and the table: a dump that is restored changes the last, a failover nothing. Services that hide
-- some of it have nothing to find there.
CREATE FUNCTION database_place() RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    there text := concat_ws('/', (SELECT oid FROM pg_database WHERE datname = current_database()), 'timeline'::regclass::oid);
BEGIN
    RETURN concat_ws('/', (SELECT system_identifier FROM pg_control_system()), there);
EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function THEN
    RETURN there;
END $$;

-- And the timeline of the server, which a promotion or a recovery to a point in time changes.
CREATE FUNCTION timeline_place() RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN concat_ws('/', left(pg_walfile_name(pg_current_wal_lsn()), 8), database_place());
EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function THEN
    RETURN database_place();
END $$;

-- The position in the write-ahead log that is on disk: no crash takes it back.
CREATE FUNCTION timeline_reached() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN pg_current_wal_flush_lsn() - '0/0'::pg_lsn;
EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function THEN
    RETURN 0;
END $$;

-- Begins a new timeline. The sequences move beyond all ids that can have been issued: to the clock in microseconds, and by a
-- random part, since a database may be set back to the same moment twice. Every lease ends, and every session has a new epoch: no
-- process can use what it remembers.
CREATE FUNCTION begin_timeline() RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    begun text := gen_random_uuid();
    far bigint := extract(epoch FROM clock()) * 1000000;
    part bigint := random() * (1::bigint << 32);
BEGIN
    PERFORM setval('epochs', greatest(last_value + (1::bigint << 32), far) + part) FROM epochs;
    PERFORM setval('orchestrator_queue_id_seq', greatest(last_value + (1::bigint << 32), far) + part)
    FROM orchestrator_queue_id_seq;
    PERFORM FROM workers ORDER BY worker_id FOR NO KEY UPDATE;
    UPDATE workers SET locked_until = clock() WHERE locked_until > clock();
    PERFORM FROM sessions ORDER BY session_id FOR NO KEY UPDATE;
    UPDATE sessions SET epoch = nextval('epochs');
    UPDATE timeline SET token = begun, place = timeline_place();
    RETURN begun;
END $$;

-- The first query of a worker's connection: the token, how far the database is (NULL: it is a standby), and its name, which
-- no other database has and which stays at a new timeline. It begins a new timeline if the server is another one, or is behind
-- the known point. With the owner's rights: other roles need none to the tables.
CREATE FUNCTION establish_timeline(
    known_token text, known_reached bigint, OUT current_token text, OUT reached bigint, OUT database text
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    here text;
    line timeline;
BEGIN
    SELECT * INTO STRICT line FROM timeline;
    current_token := line.token;
    database := concat_ws('/', (SELECT i.name FROM database_identity i), database_place());
    IF pg_is_in_recovery() THEN
        RETURN;
    END IF;
    here := timeline_place();
    reached := timeline_reached();
    IF line.place <> here OR line.token = known_token AND reached < known_reached THEN
        SELECT * INTO STRICT line FROM timeline FOR UPDATE; -- another connection may have been first
        IF line.place <> here OR line.token = known_token AND reached < known_reached THEN
            line.token := begin_timeline();
        END IF;
        current_token := line.token;
    END IF;
END $$;

-- The first query of a client's connection. It begins a new timeline only if the server is another one.
CREATE FUNCTION read_timeline(OUT current_token text, OUT reached bigint, OUT database text)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT t.current_token, t.reached, t.database FROM establish_timeline(NULL, 0) t
$$;

INSERT INTO timeline VALUES (gen_random_uuid(), timeline_place());

-- The name of this database in the contexts of encoded payloads, which stays at a new timeline; and whether workers encode them
-- (`affinity.payloads`). One row.
CREATE TABLE database_identity (
    name text COLLATE "C" NOT NULL,
    encoded boolean NOT NULL,
    offloaded boolean NOT NULL, -- large payloads are in a blob store
    check_value text COLLATE "C" -- an encoded text: a codec that cannot decode it has not the keys. NULL: there is none
);

INSERT INTO database_identity VALUES (replace(gen_random_uuid()::text, '-', ''), false, false, NULL);

-- Limits of this database, none or one row. NULL: no limit.
CREATE TABLE quotas (
    instances bigint,      -- rows of that table
    unread_events bigint,  -- of one instance
    instance_bytes bigint  -- of one instance: events of its present execution, and messages that wait for it
);

-- Where the sweeps stopped, over all workers; one row. A sweep looks at a part of the rows, and the next one, of any worker,
-- goes on from there: a sweep's cost does not grow with the number of rows. '' is the beginning.
CREATE TABLE sweeps (
    last_sweep timestamptz NOT NULL,
    queued_session text COLLATE "C" NOT NULL DEFAULT '',
    queued_route text COLLATE "C" NOT NULL DEFAULT '',
    session text COLLATE "C" NOT NULL DEFAULT '',
    pruned_to timestamptz NOT NULL DEFAULT '-infinity', -- ended instances
    rebalancing_suspended boolean NOT NULL DEFAULT false -- no worker may offer sessions to others
) WITH (fillfactor = 50);
INSERT INTO sweeps VALUES ('-infinity');

-- Rounds of retention, by what they remove: see affinity/provider/rounds.py.
CREATE TABLE rounds (
    name text COLLATE "C" PRIMARY KEY,
    place text COLLATE "C", -- as JSON, where the next step begins; NULL: at the oldest row
    removed bigint NOT NULL,
    pause double precision NOT NULL, -- seconds, before it
    due_at timestamptz NOT NULL
) WITH (fillfactor = 50);
