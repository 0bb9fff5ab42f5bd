CREATE TABLE IF NOT EXISTS affinity_once (
    work text NOT NULL,  -- idempotency key of the activity
    name text NOT NULL,  -- of the block in it; '' for the only one
    instance_id text NOT NULL,  -- for people, as is the next
    activity text NOT NULL,
    attempt integer NOT NULL,  -- the last one that has begun here
    result text,  -- JSON; NULL until the block has committed
    written_at text NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),  -- UTC
    PRIMARY KEY (work, name)
);
CREATE INDEX IF NOT EXISTS affinity_once_written_at ON affinity_once (written_at);
