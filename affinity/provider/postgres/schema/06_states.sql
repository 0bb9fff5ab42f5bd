-- Records of session state.

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
    -- Versions begin again with a record that is recreated.
    generation text COLLATE "C" NOT NULL DEFAULT gen_random_uuid()::text,
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
-- The writer has compressed the state where that saves bytes.
ALTER TABLE session_states ALTER COLUMN state SET STORAGE EXTERNAL;
CREATE INDEX session_states_updated ON session_states (updated_second);
CREATE INDEX session_states_created ON session_states (created_at);
CREATE INDEX session_states_kind ON session_states (kind, updated_second);
CREATE INDEX session_states_schema ON session_states (schema_version, updated_second);
CREATE INDEX session_states_name ON session_states (name, updated_second) WHERE name IS NOT NULL;
-- The children of a record are read in steps: a page ends at a place of this index.
CREATE INDEX session_states_children ON session_states (parent, updated_second, session_id) WHERE parent IS NOT NULL;
CREATE INDEX session_states_labels ON session_states USING gin (labels jsonb_path_ops) WHERE labels <> '{}';
CREATE INDEX session_states_participants ON session_states USING gin (participants jsonb_path_ops)
WHERE participants <> '[]';
