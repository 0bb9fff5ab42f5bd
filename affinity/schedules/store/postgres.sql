-- write: schedules, and the instances that they start
SELECT n, quota, allowed FROM write_schedules(%(rows)s, %(of)s, %(instance)s, %(generation)s, %(name)s, %(version)s,
    %(start)s, %(delay)s, %(session)s, %(labels)s)

-- client_write: the same, for clients
SELECT n, quota, allowed FROM client_write_schedules(%(rows)s, %(of)s, %(instance)s, %(generation)s, %(name)s, %(version)s,
    %(start)s, %(delay)s, %(session)s, %(labels)s)

-- next: the time, and seconds until a schedule is due
SELECT clock(), next_schedule()

-- due: schedules whose time has come, and schedules with a queued tick that may start
(SELECT
    -- include columns
FROM schedules s WHERE s.next_due IS NOT NULL AND greatest(s.next_due, s.retry_at) <= (SELECT clock())
ORDER BY greatest(s.next_due, s.retry_at) LIMIT %(limit)s)
UNION ALL
(SELECT
    -- include columns
FROM schedules s WHERE s.queued IS NOT NULL AND (s.next_due > (SELECT clock())) IS NOT false
    AND (s.retry_at > (SELECT clock())) IS NOT true AND NOT is_running(s)
ORDER BY s.queued LIMIT %(limit)s)

-- list: a page of schedules, or some
SELECT
    -- include columns
FROM schedules s WHERE true
-- [names
    AND s.name = ANY (%(names)s)
-- names]
-- [app
    AND s.app = %(app)s
-- app]
-- [after
    AND s.name > %(after)s
-- after]
ORDER BY s.name
-- [limit
LIMIT %(limit)s
-- limit]

-- columns: of a schedule
s.name, s.generation, s.revision, s.spec, s.app, s.code, s.paused, s.note, s.next_due, s.last_due, s.running, s.queued,
s.queued_until, s.retry_at, s.skipped, s.created_at, s.updated_at, is_running(s)

-- late: seconds for which the longest due schedule has been due
SELECT extract(epoch FROM clock() - s.next_due)::float8
FROM schedules s WHERE s.next_due <= (SELECT clock()) ORDER BY s.next_due LIMIT 1

-- next_due: when the next schedule will be due that is not due now
SELECT extract(epoch FROM min(at))::float8 FROM (
    SELECT min(next_due) AS at FROM schedules WHERE next_due > clock()
    UNION ALL
    SELECT min(retry_at) FROM schedules WHERE retry_at > clock()
) AS coming

-- remove_ended: schedules of clients that have ended long ago
DELETE FROM schedules s USING (
    SELECT name FROM schedules
    WHERE next_due IS NULL AND paused IS NULL AND queued IS NULL AND app IS NULL
      AND updated_at < clock() - %(older_than)s * interval '1 s'
    ORDER BY updated_at LIMIT %(window)s FOR UPDATE SKIP LOCKED
) ended
WHERE s.name = ended.name
