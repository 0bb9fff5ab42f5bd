-- Schedules. spec: JSON that the provider does not read. app, code: the version of the code that declares it; NULL: a client
-- created it. revision: the fence of each write. running: the instance that the last tick has started; queued: a tick that
-- waits for its end; queued_until: the later ticks up to then wait too, each for the end of the tick before.
CREATE TABLE schedules (
    name       TEXT PRIMARY KEY,
    generation TEXT NOT NULL,
    revision   INTEGER NOT NULL,
    spec       TEXT NOT NULL,
    app        TEXT,
    code       TEXT,
    paused     TEXT,
    note       TEXT,
    next_due   REAL,
    last_due   REAL,
    running    TEXT,
    queued     REAL,
    queued_until REAL,
    retry_at   REAL, -- a due tick could not be fired, and is not due before this time
    skipped    INTEGER NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX schedules_due ON schedules (max(next_due, coalesce(retry_at, next_due))) WHERE next_due IS NOT NULL;
CREATE INDEX schedules_late ON schedules (next_due) WHERE next_due IS NOT NULL;
CREATE INDEX schedules_queued ON schedules (queued) WHERE queued IS NOT NULL;
CREATE INDEX schedules_by_app ON schedules (app, name) WHERE app IS NOT NULL;
CREATE INDEX schedules_ended ON schedules (updated_at)
WHERE next_due IS NULL AND paused IS NULL AND queued IS NULL AND app IS NULL;
