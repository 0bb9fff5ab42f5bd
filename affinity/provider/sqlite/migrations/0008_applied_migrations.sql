-- Migrations from this one on. `user_version` states the oldest code that may use the file: see
-- affinity/provider/schema.py.
CREATE TABLE applied_migrations (
    version    INTEGER PRIMARY KEY,
    release    TEXT NOT NULL, -- of affinity, that applied it
    applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
) STRICT;
