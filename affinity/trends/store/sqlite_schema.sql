-- Trends: how many instances started and ended, retries, ages of the queues and durations, by minute and name.

-- Attempts of activities that failed and are repeated. name: of the activity.
CREATE TABLE failed_attempts (
    id           INTEGER PRIMARY KEY,
    failed_at    REAL NOT NULL,
    name         TEXT NOT NULL,
    instance_id  TEXT NOT NULL,
    execution_id INTEGER NOT NULL,
    activity_id  INTEGER NOT NULL,
    attempt      INTEGER NOT NULL
) STRICT;

CREATE INDEX failed_attempts_by_time ON failed_attempts (failed_at);
CREATE INDEX failed_attempts_by_instance ON failed_attempts (instance_id, failed_at);

-- One statement alone sets `failures`: it gives items back.
CREATE TRIGGER attempt_failed AFTER UPDATE OF failures ON worker_queue WHEN NEW.failures > OLD.failures
BEGIN
    INSERT INTO failed_attempts (failed_at, name, instance_id, execution_id, activity_id, attempt)
    VALUES (NEW.failed_at, NEW.name, NEW.instance_id, NEW.execution_id, NEW.activity_id, NEW.attempts);
END;

CREATE TRIGGER attempts_removed AFTER DELETE ON instances
BEGIN
    DELETE FROM failed_attempts WHERE instance_id = OLD.instance_id;
END;

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
