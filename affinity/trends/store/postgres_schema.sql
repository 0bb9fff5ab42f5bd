-- Trends: how many instances started and ended, retries, ages of the queues and durations, by minute and name.

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
