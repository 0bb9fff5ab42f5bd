-- known: revisions of schedules that there are
SELECT json_group_array(json_array(name, generation, revision)) FROM schedules
WHERE name IN (SELECT value FROM json_each(:names));

-- write: schedules, new ones too
INSERT INTO schedules (name, generation, revision, spec, app, code, paused, note, next_due, last_due, running, queued,
    queued_until, retry_at, skipped, created_at, updated_at)
SELECT value ->> 'name', value ->> 'generation', value ->> 'revision' + 1, value ->> 'spec', value ->> 'app',
    value ->> 'code', value ->> 'paused', value ->> 'note', value ->> 'next_due', value ->> 'last_due',
    value ->> 'running', value ->> 'queued', value ->> 'queued_until', value ->> 'retry_at',
    value ->> 'skipped', :now, :now
FROM json_each(:rows) WHERE true
ON CONFLICT (name) DO UPDATE
SET revision = excluded.revision, spec = excluded.spec, app = excluded.app, code = excluded.code,
    paused = excluded.paused, note = excluded.note, next_due = excluded.next_due, last_due = excluded.last_due,
    running = excluded.running, queued = excluded.queued, queued_until = excluded.queued_until,
    retry_at = excluded.retry_at, skipped = excluded.skipped, updated_at = excluded.updated_at;

-- remove: schedules
DELETE FROM schedules WHERE name IN (SELECT value FROM json_each(:rows));

-- remove_ended: schedules of clients that have ended long ago
DELETE FROM schedules WHERE name IN (
    SELECT name FROM schedules
    WHERE next_due IS NULL AND paused IS NULL AND queued IS NULL AND app IS NULL AND updated_at < :before
    ORDER BY updated_at LIMIT :limit
);

-- due_at: when the next schedule is due; now, if a queued tick may start
SELECT min(at) FROM (
    SELECT min(max(next_due, coalesce(retry_at, next_due))) AS at FROM schedules WHERE next_due IS NOT NULL
    UNION ALL
    SELECT max(:now, coalesce(s.retry_at, :now)) FROM schedules AS s WHERE s.queued IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM instances AS i
        WHERE i.instance_id = s.running AND i.status IN ('pending', 'running', 'suspended'))
);

-- late_since: since when the longest due schedule is due
SELECT min(next_due) FROM schedules WHERE next_due <= :now;

-- next_due: when the next schedule will be due that is not due now
SELECT min(at) FROM (
    SELECT min(next_due) AS at FROM schedules WHERE next_due > :now
    UNION ALL
    SELECT min(retry_at) FROM schedules WHERE retry_at > :now
);

-- due: schedules whose time has come, and schedules with a queued tick that may start
SELECT * FROM (
    SELECT
        -- include columns
    FROM schedules AS s WHERE s.next_due IS NOT NULL AND max(s.next_due, coalesce(s.retry_at, s.next_due)) <= :now
    ORDER BY max(s.next_due, coalesce(s.retry_at, s.next_due)) LIMIT :limit
)
UNION ALL
SELECT * FROM (
    SELECT
        -- include columns
    FROM schedules AS s WHERE s.queued IS NOT NULL AND (s.next_due > :now) IS NOT false
        AND (s.retry_at > :now) IS NOT true AND NOT EXISTS (
        SELECT 1 FROM instances AS i
        WHERE i.instance_id = s.running AND i.status IN ('pending', 'running', 'suspended'))
    ORDER BY s.queued LIMIT :limit
);

-- list: a page of schedules, or some
SELECT
    -- include columns
FROM schedules AS s WHERE true
-- [names
    AND s.name IN (SELECT value FROM json_each(:names))
-- names]
-- [app
    AND s.app = :app
-- app]
-- [after
    AND s.name > :after
-- after]
ORDER BY s.name
-- [limit
LIMIT :limit
-- limit]
;

-- columns: of a schedule
s.name, s.generation, s.revision, s.spec, s.app, s.code, s.paused, s.note, s.next_due, s.last_due, s.running, s.queued,
s.queued_until, s.retry_at, s.skipped, s.created_at, s.updated_at,
EXISTS (
    SELECT 1 FROM instances AS i WHERE i.instance_id = s.running AND i.status IN ('pending', 'running', 'suspended')
)
