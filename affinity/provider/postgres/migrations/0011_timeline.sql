-- Which database this is, and which line of its history: see affinity/provider/timeline.py. One row.
CREATE TABLE timeline (
    token text COLLATE "C" NOT NULL, -- random
    place text COLLATE "C" NOT NULL, -- what PostgreSQL itself said when the token was made
    begun_at timestamptz NOT NULL
);

-- The server, its timeline, the database and the table: a promotion or a recovery to a point in time changes the second,
-- a dump that is restored the last. Services that hide some of it have nothing to find there.
CREATE FUNCTION timeline_place() RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    there text := concat_ws('/', (SELECT oid FROM pg_database WHERE datname = current_database()), 'timeline'::regclass::oid);
BEGIN
    RETURN concat_ws('/', (SELECT system_identifier FROM pg_control_system()),
        left(pg_walfile_name(pg_current_wal_lsn()), 8), there);
EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function THEN
    RETURN there;
END $$;

-- What is on disk, so that no crash takes it back.
CREATE FUNCTION timeline_reached() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN pg_current_wal_flush_lsn() - '0/0'::pg_lsn;
EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function THEN
    RETURN 0;
END $$;

-- All ids that can be issued again jump forward, further than they can have come: a microsecond of the clock for each, as
-- well as from where they are; and by a random part, since a database may be set back to the same moment twice. Every lease ends and every session has a new epoch, so that nothing which a process
-- remembers is taken for the present, whether or not that process knows of timelines.
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
    UPDATE timeline SET token = begun, place = timeline_place(), begun_at = clock();
    RETURN begun;
END $$;

-- What each connection asks first: the token, and how far the database is (NULL: it is a standby). With the rights of the
-- role that migrated, so that others need none to the table.
CREATE FUNCTION learn_timeline(known_token text, known_reached bigint, OUT current_token text, OUT reached bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    here text;
    line timeline;
BEGIN
    SELECT * INTO STRICT line FROM timeline;
    current_token := line.token;
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

DO $do$
BEGIN
    EXECUTE format('ALTER FUNCTION learn_timeline(text, bigint) SET search_path = %I, pg_temp', current_schema);
END $do$;

INSERT INTO timeline VALUES (gen_random_uuid(), timeline_place(), clock());
