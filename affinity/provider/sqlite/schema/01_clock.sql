-- Counters, the timeline and the settings of this database.
--
-- Times are Unix seconds. The lease columns of work items and sessions are in no index: renewing a lock rewrites one row and
-- nothing else. Long columns stand last, so that no other column is read past them.

-- Migrations that were applied: see affinity/provider/schema.py.
CREATE TABLE migrations (
    version     INTEGER PRIMARY KEY,
    oldest_code INTEGER NOT NULL,
    release     TEXT NOT NULL, -- of affinity, that applied it
    applied_at  TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
) STRICT;

-- epoch: one counter for all sessions, so that a session whose row was removed never gets an old epoch again. swept_at,
-- swept_clean, pruned_to: where the last sweep stopped; the next one goes on from there. rebalancing_suspended: no worker may
-- offer sessions to others.
CREATE TABLE counters (
    name  TEXT PRIMARY KEY,
    value REAL NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO counters (name, value)
VALUES ('epoch', 0), ('swept_at', 0), ('swept_clean', 0), ('pruned_to', 0), ('rebalancing_suspended', 0);

-- Rounds of retention, by what they remove: see affinity/provider/rounds.py. place: as JSON, where the next step begins; NULL:
-- at the oldest row. pause: seconds, before it.
CREATE TABLE rounds (
    name    TEXT PRIMARY KEY,
    place   TEXT,
    removed INTEGER NOT NULL,
    pause   REAL NOT NULL,
    due_at  REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- Which database this is, and which line of its history: see affinity/provider/timeline.py. One row. Each registration
-- and renewal of a worker adds one to `reached`: a backup that is restored is behind what a worker saw.
CREATE TABLE timeline (
    token   TEXT NOT NULL,
    reached INTEGER NOT NULL
) STRICT;

INSERT INTO timeline VALUES (lower(hex(randomblob(16))), 0);

-- The name of this database in the contexts of encoded payloads, which stays at a new timeline; and whether workers encode them
-- (`affinity.payloads`). One row.
CREATE TABLE database_identity (
    name    TEXT NOT NULL,
    encoded INTEGER NOT NULL,
    offloaded INTEGER NOT NULL, -- large payloads are in a blob store
    check_value TEXT -- an encoded text: a codec that cannot decode it has not the keys. NULL: there is none
) STRICT;

INSERT INTO database_identity VALUES (lower(hex(randomblob(16))), 0, 0, NULL);

-- Limits of this database, none or one row. NULL: no limit. instances: rows of that table, counted in `counters` by triggers
-- that exist while there is a quota of them. unread_events: of one instance. instance_bytes: of one instance, events of its
-- present execution and messages that wait for it.
CREATE TABLE quotas (
    instances      INTEGER,
    unread_events  INTEGER,
    instance_bytes INTEGER
) STRICT;
