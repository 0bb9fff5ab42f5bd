-- keys: some, with the bounds of their limits
SELECT json_group_array(json_array(
    k.key_id, k.limit_name, k.key, k.changes, k.paused, k.ramp, k.resumed_at, k.closed_until, k.in_use, k.waiting, k.used,
    k.spaced_to, k.virtual_times, k.is_pending, k.opens_at, k.admitted, k.waited, k.last_admitted, k.pace,
    l.declared, l.concurrency, l.rate, l.aging, l.changes, l.paused, l.ramp, l.resumed_at, l.closed_until
))
FROM json_each(:key_ids) AS j CROSS JOIN limit_keys AS k ON k.key_id = j.value LEFT JOIN limits AS l ON l.name = k.limit_name;

-- add: keys that are not there
INSERT INTO limit_keys (limit_name, key) SELECT value ->> 0, value ->> 1 FROM json_each(:rows) WHERE true
ON CONFLICT (limit_name, key) DO NOTHING;

-- ids: of keys
SELECT json_group_array(json_array(k.limit_name, k.key, k.key_id))
FROM json_each(:names) AS j CROSS JOIN limit_keys AS k ON k.limit_name = j.value ->> 0 AND k.key = j.value ->> 1;

-- write: what an admission has changed
UPDATE limit_keys SET
    in_use = j.value ->> 1, waiting = j.value ->> 2, used = j.value ->> 3, spaced_to = j.value ->> 4,
    virtual_times = j.value ->> 5, is_pending = j.value ->> 6, opens_at = j.value ->> 7, admitted = j.value ->> 8,
    waited = j.value ->> 9, last_admitted = j.value ->> 10, pace = j.value ->> 11
FROM json_each(:rows) AS j WHERE limit_keys.key_id = j.value ->> 0;
