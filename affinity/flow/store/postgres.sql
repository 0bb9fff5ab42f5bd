-- declare: the limits of an app
SELECT declare_limits(%(app)s, %(code)s, %(limits)s::jsonb)

-- admit: work that waits
SELECT (a).admitted, (a).routes, (a).more, (a).next_due, (a).waits FROM (SELECT admit_work(%(most)s, %(if_waiting)s) AS a OFFSET 0) w

-- close: limits, for some seconds
SELECT close_limits(%(limit)s, %(key)s, %(seconds)s, %(reason)s)

-- charge: units in the rates of limits
SELECT charge_limits(%(limit)s, %(key)s, %(units)s)

-- return_slots: of lost and untaken work
SELECT return_slots(%(untaken)s, %(pause)s, %(most)s)

-- remove_unused: lines and keys
SELECT remove_unused_limit_keys(%(most)s)

-- change: limits, or keys of them
SELECT n FROM change_limits(%(changes)s::jsonb) AS c (n)

-- changed: the effects of change, for `with_shares`
SELECT n, 'done' FROM result

-- list: limits, with the use of their keys
SELECT l.name, l.keyed, l.concurrency, l.rate, l.aging, l.app, l.code, l.declared, l.changes, l.paused, l.ramp, l.resumed_at,
    CASE WHEN l.closed_until > clock() THEN l.closed_until END, CASE WHEN l.closed_until > clock() THEN l.closed_for END,
    l.changed_by, l.changed_at, coalesce(k.in_use, 0), coalesce(k.waiting, 0), k.oldest,
    l.admitted + coalesce(k.admitted, 0), l.waited + coalesce(k.waited, 0), coalesce(k.keys, 0)
FROM limits l LEFT JOIN LATERAL (
    SELECT sum(k.in_use)::bigint AS in_use, sum(k.waiting)::bigint AS waiting, sum(k.admitted)::bigint AS admitted,
        sum(k.waited)::float8 AS waited, count(*) AS keys,
        min((SELECT min(n.oldest) FROM limit_line_keys i JOIN limit_lines n USING (line_id)
             WHERE i.key_id = k.key_id AND k.waiting > 0)) AS oldest
    FROM limit_keys k WHERE k.limit_name = l.name
) k ON true
-- [names
WHERE l.name = ANY (%(names)s)
-- names]
ORDER BY l.name

-- list_keys: a page of keys of a limit, or some; charges that the next admission counts are added, also for keys without a row
WITH charged AS MATERIALIZED (
    SELECT c.key, sum(c.units)::bigint AS units FROM limit_charges c WHERE c.limit_name = %(limit)s GROUP BY c.key
)
SELECT k.limit_name, k.key, k.changes, k.paused, CASE WHEN k.closed_until > clock() THEN k.closed_until END, k.in_use,
    CASE WHEN b.rate IS NULL THEN 0
         ELSE units_used(k.used_at, k.used_units, (b.rate ->> 1)::float8, extract(epoch FROM clock())::float8)
             + coalesce((SELECT c.units FROM charged c WHERE c.key = k.key), 0) END,
    k.waiting, (SELECT min(n.oldest) FROM limit_line_keys i JOIN limit_lines n USING (line_id)
                WHERE i.key_id = k.key_id AND k.waiting > 0), k.admitted
FROM limit_keys k JOIN limit_bounds b USING (key_id)
WHERE k.limit_name = %(limit)s
-- [keys
  AND k.key = ANY (%(keys)s)
-- keys]
-- [after
  AND k.key > %(after)s
-- after]
UNION ALL
SELECT l.name, c.key, '{}'::jsonb, false, NULL, 0, CASE
    WHEN CASE WHEN l.changes ? 'rate' THEN nullif(l.changes -> 'rate', 'null') ELSE l.rate END IS NULL THEN 0
    ELSE c.units END, 0, NULL, 0
FROM charged c JOIN limits l ON l.name = %(limit)s
WHERE NOT EXISTS (SELECT FROM limit_keys k WHERE k.limit_name = l.name AND k.key = c.key)
-- [keys
  AND c.key = ANY (%(keys)s)
-- keys]
-- [after
  AND c.key > %(after)s
-- after]
ORDER BY 2 LIMIT %(most)s

-- waits: why work waits
SELECT f.instance_id, f.execution_id, f.activity_id, x.limit_name, x.key, x.cause, x.priority, x.since, x.in_use, x.concurrency,
    x.used, x.rate, x.before, x.seconds
FROM unnest(%(instance)s, %(execution)s, %(activity)s) WITH ORDINALITY AS f (instance_id, execution_id, activity_id, n)
CROSS JOIN LATERAL (
    SELECT b.limit_name, b.key, coalesce(r.cause, 'order') AS cause, l.priority, w.since, b.in_use, b.concurrency,
        CASE WHEN b.rate IS NULL THEN 0 ELSE units_used(
            b.used_at, b.used_units, (b.rate ->> 1)::float8, extract(epoch FROM clock())::float8) END AS used,
        b.rate, p.before, CASE
            WHEN r.cause IN ('paused') THEN NULL
            WHEN r.cause = 'closed' THEN extract(epoch FROM r.opens - clock())
            WHEN k.pace IS NOT NULL THEN greatest(extract(epoch FROM r.opens - clock()), (p.before + 1) * k.pace)
            ELSE extract(epoch FROM r.opens - clock()) END::float8 AS seconds
    FROM limited_work w JOIN limit_lines l USING (line_id)
    CROSS JOIN LATERAL unnest(l.keys, l.units) WITH ORDINALITY AS u (key_id, units, place)
    JOIN limit_bounds b ON b.key_id = u.key_id JOIN limit_keys k ON k.key_id = u.key_id
    CROSS JOIN LATERAL limit_room(u.key_id, u.units) r
    CROSS JOIN LATERAL (
        SELECT least(1000, o.own + (
            SELECT coalesce(sum(CASE WHEN n.priority > l.priority THEN n.waiting ELSE least(n.waiting, o.own + 1) END), 0)
            FROM limit_line_keys i JOIN limit_lines n ON n.line_id = i.line_id
            WHERE i.key_id = u.key_id AND n.line_id <> l.line_id AND n.waiting > 0 AND n.priority >= l.priority))::bigint AS before
        FROM (SELECT count(*) AS own FROM (
            SELECT FROM limited_work o
            WHERE o.line_id = w.line_id AND o.admitted_at IS NULL AND NOT o.is_freed
              AND (o.since, o.number) < (w.since, w.number) LIMIT 1000) o) o
    ) p
    WHERE w.instance_id = f.instance_id AND w.execution_id = f.execution_id AND w.activity_id = f.activity_id
      AND w.admitted_at IS NULL AND NOT w.is_freed
    ORDER BY r.cause IS NULL, u.key_id <> l.domain, u.place LIMIT 1
) x
ORDER BY f.n
