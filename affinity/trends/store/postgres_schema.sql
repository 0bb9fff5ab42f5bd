-- Trends: how many instances started and ended, retries, ages of the queues and durations, by minute and name.

-- Attempts of activities that failed and are repeated. Kept by a trigger.
CREATE TABLE failed_attempts (
    failed_at timestamptz NOT NULL,
    name text COLLATE "C" NOT NULL, -- of the activity
    instance_id text COLLATE "C" NOT NULL,
    execution_id bigint NOT NULL,
    activity_id integer NOT NULL,
    attempt integer NOT NULL,
    PRIMARY KEY (failed_at, instance_id, execution_id, activity_id, attempt)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE INDEX failed_attempts_instance ON failed_attempts (instance_id, failed_at);

CREATE FUNCTION keep_failed_attempt() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO failed_attempts (failed_at, name, instance_id, execution_id, activity_id, attempt)
    VALUES (NEW.failed_at, NEW.name, NEW.instance_id, NEW.execution_id, NEW.activity_id, NEW.attempts)
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

-- One statement alone sets this column: it gives items back.
CREATE TRIGGER attempt_failed AFTER UPDATE OF failures ON worker_queue FOR EACH ROW
WHEN (NEW.failures > OLD.failures) EXECUTE FUNCTION keep_failed_attempt();

CREATE FUNCTION remove_failed_attempts() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM failed_attempts f USING gone g WHERE f.instance_id = g.instance_id;
    RETURN NULL;
END $$;

CREATE TRIGGER attempts_removed AFTER DELETE ON instances REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION remove_failed_attempts();

-- The counts of a name in a minute; the name '' has those of all names of its kind.
CREATE TABLE trends (
    kind text COLLATE "C" NOT NULL CHECK (kind IN ('orchestration', 'activity')),
    name text COLLATE "C" NOT NULL,
    minute integer NOT NULL, -- since 1970
    started integer NOT NULL,
    completed integer NOT NULL,
    failed integer NOT NULL,
    cancelled integer NOT NULL,
    retries integer NOT NULL,
    queue_age float8, -- seconds
    durations jsonb NOT NULL, -- how many in each bucket of affinity/trends/durations.py
    PRIMARY KEY (kind, name, minute)
) WITH (fillfactor = 70);
CREATE INDEX trends_minute ON trends (minute);

-- Up to when all is counted, and when the next count is due. One row at most.
CREATE TABLE trend_rounds (
    part integer PRIMARY KEY CHECK (part = 1),
    counted_to timestamptz NOT NULL,
    due_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- The sum of two histograms.
CREATE FUNCTION add_durations(_one jsonb, _other jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(jsonb_object_agg(s.bucket, s.number), '{}') FROM (
        SELECT d.key AS bucket, sum(d.value::bigint) AS number
        FROM (SELECT * FROM jsonb_each_text(_one) UNION ALL SELECT * FROM jsonb_each_text(_other)) d GROUP BY d.key) s
$$;
