-- What a session knows, what keeps it where it is, and who wants to hear that it moved.

-- The state stands last, and before it what is long: whoever asks for a version reads one page, not a chain of them.
-- Every index but that of creation ends with the order of a listing, so that a page of it needs no sort.
CREATE TABLE session_states (
    session_id     TEXT PRIMARY KEY,
    version        INTEGER NOT NULL,
    epoch          INTEGER,
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
CREATE INDEX session_states_by_kind ON session_states (kind, updated_at, session_id);
CREATE INDEX session_states_by_schema ON session_states (schema_version, updated_at, session_id);
CREATE INDEX session_states_by_name ON session_states (name, updated_at, session_id) WHERE name IS NOT NULL;
CREATE INDEX session_states_by_parent ON session_states (parent, updated_at, session_id) WHERE parent IS NOT NULL;
CREATE INDEX session_states_by_creation ON session_states (created_at, session_id);

-- The labels once more, to be found by; without the time of the last write, so that a write that leaves them as they
-- are has nothing to do here.
CREATE TABLE session_labels (
    key        TEXT NOT NULL,
    value      TEXT NOT NULL,
    session_id TEXT NOT NULL,
    PRIMARY KEY (key, value, session_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX session_labels_by_session ON session_labels (session_id);

-- session_lock: seconds, for whoever ends the hold without knowing the timeouts of the worker.
CREATE TABLE session_holds (
    instance_id  TEXT NOT NULL,
    execution_id INTEGER NOT NULL,
    hold_id      INTEGER NOT NULL,
    session_id   TEXT NOT NULL,
    until        REAL NOT NULL,
    session_lock REAL NOT NULL,
    PRIMARY KEY (instance_id, execution_id, hold_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX session_holds_by_session ON session_holds (session_id, until);
CREATE INDEX session_holds_by_end ON session_holds (until);

CREATE TABLE session_watches (
    session_id  TEXT NOT NULL,
    instance_id TEXT NOT NULL,
    payload     TEXT NOT NULL,
    PRIMARY KEY (session_id, instance_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX session_watches_by_instance ON session_watches (instance_id);
