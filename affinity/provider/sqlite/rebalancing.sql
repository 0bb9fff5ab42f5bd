-- report: how many sessions the caller holds
UPDATE workers SET sessions = :sessions
WHERE worker_id = :worker_id AND incarnation = :incarnation AND locked_until > :now;

-- load: of all workers that are alive
SELECT worker_id, incarnation, sessions, capacity, draining, :now - started_at, app, code_version
FROM workers WHERE locked_until > :now ORDER BY worker_id;

-- suspended: whether no worker may offer sessions
SELECT value FROM counters WHERE name = 'rebalancing_suspended';

-- suspend: or allow again
UPDATE counters SET value = :suspended WHERE name = 'rebalancing_suspended';
