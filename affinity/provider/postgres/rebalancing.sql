-- report: how many sessions the caller holds
UPDATE workers SET sessions = %(sessions)s
WHERE worker_id = %(worker)s AND incarnation = %(incarnation)s AND locked_until > clock()

-- load: of all workers that are alive
SELECT s.rebalancing_suspended, w.worker_id, w.incarnation, w.sessions, w.capacity, w.draining,
    extract(epoch FROM clock() - w.started_at)::float8, w.app, w.code_version
FROM sweeps s LEFT JOIN workers w ON w.locked_until > clock()
ORDER BY w.worker_id

-- suspend: or allow again
UPDATE sweeps SET rebalancing_suspended = %(suspended)s RETURNING 1

-- suspended: the effect of suspend, for `with_shares`
SELECT 1, 'done' FROM result
