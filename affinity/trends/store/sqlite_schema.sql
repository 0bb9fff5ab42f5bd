-- Trends: how many instances started and ended, retries, ages of the queues and durations, by minute and name.

-- The counts of a name in a minute since 1970; the name '' has those of all names of its kind. queue_age: seconds. durations:
-- how many in each bucket of affinity/trends/durations.py, as JSON.
CREATE TABLE trends (
    kind      TEXT NOT NULL CHECK (kind IN ('orchestration', 'activity')),
    name      TEXT NOT NULL,
    minute    INTEGER NOT NULL,
    started   INTEGER NOT NULL,
    completed INTEGER NOT NULL,
    failed    INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    retries   INTEGER NOT NULL,
    queue_age REAL,
    durations TEXT NOT NULL,
    PRIMARY KEY (kind, name, minute)
) STRICT, WITHOUT ROWID;

CREATE INDEX trends_by_minute ON trends (minute);

-- Up to when all is counted, and when the next count is due. One row at most.
CREATE TABLE trend_rounds (
    part       INTEGER PRIMARY KEY CHECK (part = 1),
    counted_to REAL NOT NULL,
    due_at     REAL NOT NULL
) STRICT;
