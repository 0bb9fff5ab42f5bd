-- Suspended instances: why, since when, and which code has tried. Workers of the release before take them for finished.
ALTER DOMAIN instance_status DROP CONSTRAINT instance_status_check;
ALTER DOMAIN instance_status ADD CONSTRAINT instance_status_check
    CHECK (VALUE IN ('pending', 'running', 'suspended', 'completed', 'failed', 'cancelled'));

-- The row stays when the instance is resumed: it tells those who have tried from those who have not.
CREATE TABLE suspensions (
    instance_id text COLLATE "C" PRIMARY KEY,
    execution_id bigint NOT NULL, -- where it was suspended: behind that point, nobody has tried
    event_count integer NOT NULL,
    error_type text COLLATE "C" NOT NULL,
    message text NOT NULL,
    worker_id text COLLATE "C" NOT NULL,
    code text COLLATE "C" NOT NULL,
    tried text[] NOT NULL, -- codes, of which this one is the last
    needs_code boolean NOT NULL,
    suspended_at timestamptz NOT NULL,
    resumed_at timestamptz, -- NULL: it is suspended
    unchecked boolean NOT NULL DEFAULT false -- resumed, and no sweep has looked yet for messages that came at that moment
);
CREATE INDEX suspensions_open ON suspensions (suspended_at) WHERE resumed_at IS NULL AND needs_code;
CREATE INDEX suspensions_unchecked ON suspensions (resumed_at) WHERE unchecked;

-- Where a message for an instance goes: to its owner, to whoever comes, or nowhere for now. Finished ones take none.
CREATE VIEW message_routes AS
SELECT i.instance_id, i.birth,
    CASE WHEN i.status = 'suspended' THEN 'suspended' ELSE coalesce('w:' || w.worker_id, 'new') END AS route
FROM instances i
LEFT JOIN alive_workers w ON w.worker_id = i.owner_worker AND w.incarnation = i.owner_incarnation
WHERE i.status IN ('pending', 'running', 'suspended');

CREATE OR REPLACE FUNCTION tell_watchers() RETURNS trigger LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
    SELECT r.instance_id, r.route, clock(), w.payload
    FROM session_watches w JOIN message_routes r USING (instance_id)
    WHERE w.session_id = NEW.session_id;
    RETURN NULL;
END $$;
