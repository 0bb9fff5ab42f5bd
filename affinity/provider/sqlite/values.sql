-- clear: all values of some instances
DELETE FROM instance_values WHERE instance_id IN (SELECT value FROM json_each(:rows));

-- remove: values that turns have removed
DELETE FROM instance_values WHERE (instance_id, key) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:rows));

-- set: values that turns have set
INSERT INTO instance_values (instance_id, key, value, updated_at)
SELECT value ->> 0, value ->> 1, value ->> 2, :now FROM json_each(:rows) WHERE true
ON CONFLICT (instance_id, key) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at;

-- measure: the bytes of the values of some instances
UPDATE instances SET value_bytes = (
    SELECT coalesce(sum(length(CAST(v.key AS BLOB)) + length(CAST(v.value AS BLOB))), 0)
    FROM instance_values AS v WHERE v.instance_id = instances.instance_id
)
WHERE instance_id IN (SELECT value FROM json_each(:rows));

-- values: the values of some instances, or those of one key
SELECT json_group_array(json_array(v.instance_id, v.key, v.value))
FROM json_each(:instance_ids) AS j CROSS JOIN instance_values AS v ON v.instance_id = j.value
WHERE :key IS NULL OR v.key = :key;
