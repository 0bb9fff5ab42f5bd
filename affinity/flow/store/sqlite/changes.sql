-- declare: the limits of an app; one that another app declares stays as it is, and one that has not changed is not written
INSERT INTO limits (name, app, code, declared, keyed, concurrency, rate, aging)
SELECT value ->> 'name', :app, :code, 1, value ->> 'keyed', value ->> 'concurrency', value ->> 'rate', value ->> 'aging'
FROM json_each(:specs) WHERE true
ON CONFLICT (name) DO UPDATE
SET app = excluded.app, code = excluded.code, declared = 1, keyed = excluded.keyed, concurrency = excluded.concurrency,
    rate = excluded.rate, aging = excluded.aging
WHERE (limits.app = excluded.app OR NOT limits.declared)
  AND (limits.app, limits.code, limits.declared, limits.keyed, limits.concurrency, limits.rate, limits.aging)
      IS NOT (excluded.app, excluded.code, 1, excluded.keyed, excluded.concurrency, excluded.rate, excluded.aging);

-- undeclare: the other limits of an app
UPDATE limits SET declared = 0, code = :code
WHERE app = :app AND declared AND name NOT IN (SELECT value ->> 'name' FROM json_each(:specs));

-- open_of_app: look at the work again that waits at the limits of an app
UPDATE limit_keys SET opens_at = 0.0
WHERE waiting > 0 AND limit_name IN (SELECT name FROM limits WHERE app = :app);

-- is_declared: whether code declares a limit
SELECT 1 FROM limits WHERE name = :name AND declared;

-- close: a limit, unless it is closed for longer
UPDATE limits SET closed_until = :until, closed_for = :reason
WHERE name = :name AND coalesce(closed_until, 0.0) < :until;

-- close_key: one key, unless it is closed for longer
UPDATE limit_keys SET closed_until = max(coalesce(closed_until, 0.0), :until) WHERE key_id = :key_id;

-- note_change: who has changed a limit
UPDATE limits SET changed_by = :by, changed_at = :now WHERE name = :name;

-- changes: of a limit, so far
SELECT changes FROM limits WHERE name = :name;

-- changes_of_key: so far
SELECT changes FROM limit_keys WHERE key_id = :key_id;

-- change: a limit, for all keys
UPDATE limits SET
    -- include changed
WHERE name = :name;

-- change_key: one key
UPDATE limit_keys SET
    -- include changed
WHERE key_id = :key_id;

-- changed: bounds, and whether it is paused
changes = :changes,
    paused = coalesce(:paused, iif(:reset, 0, paused)),
    ramp = iif(:paused IS NOT NULL OR :reset, :ramp, ramp),
    resumed_at = iif(:ramp IS NULL, resumed_at, :now),
    closed_until = iif(:paused IS 0 OR :reset, NULL, closed_until);

-- open: look at the work again that waits at a limit
UPDATE limit_keys SET opens_at = 0.0 WHERE limit_name = :name AND waiting > 0;

-- open_key: look at the work again that waits at one key
UPDATE limit_keys SET opens_at = 0.0 WHERE key_id = :key_id AND waiting > 0;
