-- The collection of blobs: large payloads, which are kept outside the database.

-- Blobs that are to be deleted. A writer that finds its blob here stores it anew.
CREATE TABLE condemned_blobs (
    digest       TEXT PRIMARY KEY,
    condemned_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- Blobs that no row named when a collection looked. Later ones delete those that are as they were for long enough.
CREATE TABLE orphan_blobs (
    digest   TEXT PRIMARY KEY,
    used_at  TEXT NOT NULL, -- as the store said it: opaque
    size     INTEGER NOT NULL, -- bytes
    found_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX orphan_blobs_by_age ON orphan_blobs (found_at);

-- When the next collection may begin. One row at most.
CREATE TABLE blob_rounds (
    part   INTEGER PRIMARY KEY CHECK (part = 1),
    due_at REAL NOT NULL
) STRICT;

-- Blobs that an export names. The mark is as in payloads, so that the collection finds it.
CREATE TABLE exported_blobs (
    digest      TEXT PRIMARY KEY,
    exported_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX exported_blobs_by_age ON exported_blobs (exported_at);
