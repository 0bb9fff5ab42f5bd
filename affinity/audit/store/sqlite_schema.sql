-- The audit log: who did what. stated_user: as the caller stated. kind: of the target. details: JSON with names and
-- reasons among the arguments.
CREATE TABLE audit (
    entry_id    INTEGER PRIMARY KEY,
    at          REAL NOT NULL,
    stated_user TEXT NOT NULL,
    source      TEXT NOT NULL,
    action      TEXT NOT NULL,
    kind        TEXT NOT NULL,
    target      TEXT NOT NULL,
    outcome     TEXT NOT NULL,
    succeeded   INTEGER NOT NULL,
    details     TEXT NOT NULL
) STRICT;

CREATE INDEX audit_at ON audit (at, entry_id);
CREATE INDEX audit_user ON audit (stated_user, at, entry_id);
CREATE INDEX audit_action ON audit (action, at, entry_id);
CREATE INDEX audit_target ON audit (target, at, entry_id);
CREATE INDEX audit_source ON audit (source, at, entry_id);
CREATE INDEX audit_succeeded ON audit (succeeded, at, entry_id);
