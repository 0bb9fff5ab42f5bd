-- Limits of this database, none or one row. NULL: there is none. instances: rows of that table, counted in `counters` by
-- triggers that are there while there is a quota of them. unread_events: of one instance. instance_bytes: of one instance,
-- events of its present execution and messages that wait for it.
CREATE TABLE quotas (
    instances      INTEGER,
    unread_events  INTEGER,
    instance_bytes INTEGER
) STRICT;

-- How many bytes the first events of an execution have, so that each event is measured once. Only while there is a quota.
CREATE TABLE instance_sizes (
    instance_id  TEXT PRIMARY KEY,
    birth        TEXT NOT NULL,
    execution_id INTEGER NOT NULL,
    event_count  INTEGER NOT NULL,
    bytes        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER instance_size_deleted AFTER DELETE ON instances
BEGIN
    DELETE FROM instance_sizes WHERE instance_id = OLD.instance_id;
END;
