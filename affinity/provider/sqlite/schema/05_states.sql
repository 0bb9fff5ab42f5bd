-- Records of session state.

-- The state stands last, and before it the other long columns: a statement that asks for a version reads one page, not a chain
-- of them. generation: versions begin again with a record that is recreated. turn: idempotency key of the last write. Every
-- index but the one by creation ends with the order of a listing, so that a page of it needs no sort.
CREATE TABLE session_states (
    session_id     TEXT PRIMARY KEY,
    version        INTEGER NOT NULL,
    generation     TEXT NOT NULL DEFAULT (lower(hex(randomblob(8)))),
    epoch          INTEGER, -- of the lease that wrote it last; NULL: none ever did
    created_at     REAL NOT NULL,
    updated_at     REAL NOT NULL,
    schema_version INTEGER NOT NULL,
    encoding       TEXT NOT NULL,
    kind           TEXT NOT NULL,
    name           TEXT,
    parent         TEXT,
    message_count  INTEGER,
    turn           TEXT,
    labels         TEXT NOT NULL,
    participants   TEXT NOT NULL,
    state          BLOB NOT NULL
) STRICT;

CREATE INDEX session_states_by_age ON session_states (updated_at, session_id);
CREATE INDEX session_states_by_creation ON session_states (created_at, session_id);
CREATE INDEX session_states_by_kind ON session_states (kind, updated_at, session_id);
CREATE INDEX session_states_by_name ON session_states (name, updated_at, session_id) WHERE name IS NOT NULL;
CREATE INDEX session_states_by_parent ON session_states (parent, updated_at, session_id) WHERE parent IS NOT NULL;
CREATE INDEX session_states_by_schema ON session_states (schema_version, updated_at, session_id);

-- The labels and the participants once more, to be found by; without the time of the last write, so that a write that leaves
-- them as they are changes nothing here.
CREATE TABLE session_labels (
    key        TEXT NOT NULL,
    value      TEXT NOT NULL,
    session_id TEXT NOT NULL,
    PRIMARY KEY (key, value, session_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX session_labels_by_session ON session_labels (session_id);

CREATE TABLE session_participants (
    participant TEXT NOT NULL,
    session_id  TEXT NOT NULL,
    PRIMARY KEY (participant, session_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX session_participants_by_session ON session_participants (session_id);
