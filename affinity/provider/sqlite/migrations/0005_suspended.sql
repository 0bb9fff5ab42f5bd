-- Suspended instances: why, since when, and which code has tried.

-- execution_id and event_count: where it was suspended; behind that point, nobody has tried. tried: a JSON array of code
-- versions, of which `code` is the last. The row stays when the instance is resumed: it tells those who have tried from
-- those who have not.
CREATE TABLE suspensions (
    instance_id  TEXT PRIMARY KEY,
    execution_id INTEGER NOT NULL,
    event_count  INTEGER NOT NULL,
    error_type   TEXT NOT NULL,
    message      TEXT NOT NULL,
    worker_id    TEXT NOT NULL,
    code         TEXT NOT NULL,
    tried        TEXT NOT NULL,
    needs_code   INTEGER NOT NULL,
    suspended_at REAL NOT NULL,
    resumed_at   REAL
) STRICT, WITHOUT ROWID;

CREATE INDEX suspensions_open ON suspensions (suspended_at) WHERE resumed_at IS NULL AND needs_code;
