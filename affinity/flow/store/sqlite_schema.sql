-- Limits, and the work that waits at them. Times are Unix seconds.

-- A limit as the newest code of its app declares it. changes: what is changed while all runs, over what is declared, as JSON:
-- `concurrency`, `rate` ([count, per, burst]); null there: no such bound.
CREATE TABLE limits (
    name         TEXT PRIMARY KEY,
    app          TEXT NOT NULL,
    code         TEXT NOT NULL,
    declared     INTEGER NOT NULL, -- 0: the newest code does not, and the limit holds nothing back
    keyed        INTEGER NOT NULL,
    concurrency  INTEGER,
    rate         TEXT,
    aging        REAL NOT NULL, -- seconds
    changes      TEXT NOT NULL DEFAULT '{}',
    paused       INTEGER NOT NULL DEFAULT 0,
    ramp         REAL, -- slots that each second adds from resumed_at on; NULL: all are there
    resumed_at   REAL,
    closed_until REAL,
    closed_for   TEXT,
    changed_by   TEXT,
    changed_at   REAL,
    admitted     INTEGER NOT NULL DEFAULT 0, -- of keys that were removed
    waited       REAL NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- The keys of limits; the key of a limit without keys is empty. A limit that no code has declared has keys too: its work is counted.
CREATE TABLE limit_keys (
    key_id        INTEGER PRIMARY KEY,
    limit_name    TEXT NOT NULL,
    key           TEXT NOT NULL,
    changes       TEXT NOT NULL DEFAULT '{}',
    paused        INTEGER NOT NULL DEFAULT 0,
    ramp          REAL,
    resumed_at    REAL,
    closed_until  REAL,
    in_use        INTEGER NOT NULL DEFAULT 0,
    waiting       INTEGER NOT NULL DEFAULT 0,
    used          TEXT NOT NULL DEFAULT '[]', -- uses of the rate, as JSON: time, in steps of a 64th of the window, and units
    spaced_to     REAL NOT NULL DEFAULT 0, -- up to when evenly spaced units are used
    virtual_times TEXT NOT NULL DEFAULT '{}', -- of the lines whose domain it is, by priority
    is_pending    INTEGER NOT NULL DEFAULT 0, -- its lines are to be looked at
    opens_at      REAL, -- when they are, and the lines that are blocked on it; 0: now, since slots were freed or bounds changed
    admitted      INTEGER NOT NULL DEFAULT 0,
    waited        REAL NOT NULL DEFAULT 0, -- seconds, of all that was admitted
    last_admitted REAL,
    pace          REAL, -- seconds between two admissions, lately
    UNIQUE (limit_name, key)
) STRICT;

CREATE INDEX limit_keys_open ON limit_keys (opens_at) WHERE opens_at IS NOT NULL;
CREATE INDEX limit_keys_waiting ON limit_keys (key_id) WHERE waiting > 0;
CREATE INDEX limit_keys_pending ON limit_keys (last_admitted) WHERE is_pending;

-- A line: work with one gate, in order of age. Lines of one domain, the first limit of the gate that has no keys, are served in the
-- order of their priorities, then of their virtual times. keys: as JSON, of each limit the key and the units.
CREATE TABLE limit_lines (
    line_id      INTEGER PRIMARY KEY,
    gate         TEXT NOT NULL UNIQUE,
    priority     INTEGER NOT NULL,
    keys         TEXT NOT NULL,
    domain       INTEGER NOT NULL, -- a key, as the next two
    share        INTEGER NOT NULL, -- whose share of the domain its work is
    blocked_on   INTEGER, -- that has no room for its first work; NULL: it may be served
    weight       REAL NOT NULL,
    waiting      INTEGER NOT NULL DEFAULT 0,
    virtual_next REAL NOT NULL DEFAULT 0,
    oldest       REAL, -- since when its first work waits
    used_at      REAL NOT NULL
) STRICT;

CREATE INDEX limit_lines_ready ON limit_lines (domain, priority DESC, virtual_next, line_id)
    WHERE waiting > 0 AND blocked_on IS NULL;
CREATE INDEX limit_lines_oldest ON limit_lines (domain, oldest) WHERE waiting > 0 AND blocked_on IS NULL;
CREATE INDEX limit_lines_blocked ON limit_lines (blocked_on, priority DESC, virtual_next, line_id) WHERE blocked_on IS NOT NULL;
CREATE INDEX limit_lines_share ON limit_lines (share, domain, priority) WHERE waiting > 0;
CREATE INDEX limit_lines_unused ON limit_lines (used_at) WHERE waiting = 0;

CREATE TABLE limit_line_keys (
    line_id INTEGER NOT NULL,
    key_id  INTEGER NOT NULL,
    PRIMARY KEY (line_id, key_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX limit_line_keys_by_key ON limit_line_keys (key_id, line_id);

-- Work that waits at its limits, or has slots there. item_id: in worker_queue; NULL: the start of the instance.
CREATE TABLE limited_work (
    work_id     INTEGER PRIMARY KEY,
    line_id     INTEGER NOT NULL,
    item_id     INTEGER,
    instance_id TEXT NOT NULL,
    since       REAL NOT NULL,
    admitted_at REAL -- NULL: it waits
) STRICT;

CREATE INDEX limited_work_by_line ON limited_work (line_id, admitted_at, since, work_id);
CREATE INDEX limited_work_admitted ON limited_work (work_id) WHERE admitted_at IS NOT NULL;
CREATE UNIQUE INDEX limited_work_items ON limited_work (item_id) WHERE item_id IS NOT NULL;
CREATE UNIQUE INDEX limited_work_starts ON limited_work (instance_id) WHERE item_id IS NULL;

-- Triggers, so that no statement that removes work, or puts it back, can leave its slots in use.
CREATE TRIGGER limited_work_removed AFTER DELETE ON worker_queue WHEN OLD.limited
BEGIN
    DELETE FROM limited_work WHERE item_id = OLD.id;
END;

CREATE TRIGGER limited_work_returned AFTER UPDATE OF route ON worker_queue
WHEN NEW.route = 'gate' AND NEW.limited AND OLD.route NOT IN ('gate', 'blocked')
BEGIN
    DELETE FROM limited_work WHERE item_id = NEW.id;
END;

CREATE TRIGGER limited_instance_ended AFTER UPDATE OF status, limited ON instances
WHEN OLD.limited AND (NEW.status IN ('completed', 'failed', 'cancelled') OR NEW.limited IS NOT 1)
BEGIN
    DELETE FROM limited_work WHERE instance_id = NEW.instance_id AND item_id IS NULL;
END;

CREATE TRIGGER limited_instance_removed AFTER DELETE ON instances WHEN OLD.limited
BEGIN
    DELETE FROM limited_work WHERE instance_id = OLD.instance_id AND item_id IS NULL;
END;

CREATE TRIGGER limited_work_freed AFTER DELETE ON limited_work WHEN OLD.admitted_at IS NOT NULL
BEGIN
    UPDATE limit_keys SET in_use = in_use - 1, opens_at = iif(waiting > 0, 0.0, opens_at)
    WHERE key_id IN (SELECT key_id FROM limit_line_keys WHERE line_id = OLD.line_id);
END;

CREATE TRIGGER limited_work_given_up AFTER DELETE ON limited_work WHEN OLD.admitted_at IS NULL
BEGIN
    UPDATE limit_keys SET waiting = waiting - 1
    WHERE key_id IN (SELECT key_id FROM limit_line_keys WHERE line_id = OLD.line_id);
    UPDATE limit_lines SET
        waiting = waiting - 1,
        blocked_on = iif(waiting > 1, blocked_on, NULL),
        oldest = (SELECT since FROM limited_work WHERE line_id = OLD.line_id AND admitted_at IS NULL ORDER BY since, work_id LIMIT 1)
    WHERE line_id = OLD.line_id;
END;
