-- What a session knows, what keeps it where it is, and who wants to hear that it moved.

CREATE TABLE session_states (
    session_id text COLLATE "C" PRIMARY KEY,
    state bytea NOT NULL,
    encoding text COLLATE "C" NOT NULL,
    schema_version integer NOT NULL,
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C",
    parent text COLLATE "C",
    labels jsonb NOT NULL,
    message_count integer,
    participants jsonb NOT NULL,
    version bigint NOT NULL,
    epoch bigint, -- of the lease that wrote it last; NULL: none ever did
    turn text COLLATE "C", -- idempotency key of the last write
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    -- What the indexes have instead of updated_at: a session that is written many times a second then changes no
    -- indexed column, which makes all but the first of these writes heap-only updates. A listing sorts within a second.
    updated_second timestamp NOT NULL GENERATED ALWAYS AS (date_trunc('second', updated_at AT TIME ZONE 'UTC')) STORED
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 0, toast.autovacuum_vacuum_threshold = 2000,
        toast.autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_cost_delay = 0);
-- Whoever writes has compressed what is worth it.
ALTER TABLE session_states ALTER COLUMN state SET STORAGE EXTERNAL;

CREATE INDEX session_states_updated ON session_states (updated_second);
CREATE INDEX session_states_created ON session_states (created_at);
CREATE INDEX session_states_kind ON session_states (kind, updated_second);
CREATE INDEX session_states_schema ON session_states (schema_version, updated_second);
CREATE INDEX session_states_name ON session_states (name, updated_second) WHERE name IS NOT NULL;
CREATE INDEX session_states_parent ON session_states (parent, updated_second) WHERE parent IS NOT NULL;
CREATE INDEX session_states_labels ON session_states USING gin (labels jsonb_path_ops) WHERE labels <> '{}';

CREATE TABLE session_holds (
    instance_id text COLLATE "C" NOT NULL,
    execution_id bigint NOT NULL,
    hold_id integer NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    until timestamptz NOT NULL,
    session_lock double precision NOT NULL, -- seconds; for whoever ends the hold without knowing the worker's timeouts
    PRIMARY KEY (instance_id, execution_id, hold_id)
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX session_holds_session ON session_holds (session_id, until);
CREATE INDEX session_holds_until ON session_holds (until);

CREATE TABLE session_watches (
    session_id text COLLATE "C" NOT NULL,
    instance_id text COLLATE "C" NOT NULL,
    payload text NOT NULL,
    PRIMARY KEY (session_id, instance_id)
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX session_watches_instance ON session_watches (instance_id);

-- Asked by a statement that has the session's row locked. VOLATILE on purpose: it looks at the table as it is now,
-- where the statement's own snapshot may be older than the lock, and would miss a hold that was made while it waited.
CREATE FUNCTION latest_hold(session text) RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT max(until) FROM session_holds WHERE session_id = session);
END $$;

-- A trigger, so that no statement that gives a session to another holder can forget those who watch it; and, for the
-- same reason as above, so that it sees a watch that was set while the statement waited for the row. Updates that do
-- not name these columns hardly notice it.
CREATE FUNCTION tell_watchers() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
    SELECT i.instance_id, coalesce('w:' || o.worker_id, 'new'), clock(), w.payload
    FROM session_watches w JOIN instances i USING (instance_id)
    LEFT JOIN alive_workers o ON o.worker_id = i.owner_worker AND o.incarnation = i.owner_incarnation
    WHERE w.session_id = NEW.session_id AND i.status IN ('pending', 'running');
    RETURN NULL;
END $$;
CREATE TRIGGER session_moved AFTER UPDATE OF worker_id, incarnation ON sessions
FOR EACH ROW WHEN (OLD.worker_id <> NEW.worker_id OR OLD.incarnation <> NEW.incarnation)
EXECUTE FUNCTION tell_watchers();
