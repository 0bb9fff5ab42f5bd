-- Resources that outlive a process: see `ResourceStore` in affinity/records.py. What uses one is in the labels of records.

-- The activity is the one that began it, or uses it without a committed result. handle: NULL until it is created.
-- taken_until: it is being destroyed; NULL: it is not.
CREATE TABLE resources (
    resource_id text COLLATE "C" PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    instance_id text COLLATE "C" NOT NULL,
    execution_id bigint NOT NULL,
    activity_id bigint NOT NULL,
    handle text,
    taken_until timestamptz,
    created_at timestamptz NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX resources_activity ON resources (instance_id, execution_id, activity_id, name);
CREATE INDEX resources_name ON resources (name, created_at);
