-- Resources that outlive a process: see `ResourceStore` in affinity/records.py. What uses one is in the labels of records.

-- The activity is the one that began it, or uses it without a committed result. handle: NULL until it is created.
-- taken_until: it is being destroyed; NULL: it is not.
CREATE TABLE resources (
    resource_id  TEXT PRIMARY KEY,
    name         TEXT NOT NULL,
    instance_id  TEXT NOT NULL,
    execution_id INTEGER NOT NULL,
    activity_id  INTEGER NOT NULL,
    handle       TEXT,
    taken_until  REAL,
    created_at   REAL NOT NULL
) STRICT;

CREATE INDEX resources_by_activity ON resources (instance_id, execution_id, activity_id, name);
CREATE INDEX resources_by_name ON resources (name, created_at);
