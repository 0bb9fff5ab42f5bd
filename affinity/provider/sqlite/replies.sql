-- known: which of some keys their instances have got a message of
SELECT json_group_array(json_array(j.value ->> 0, j.value ->> 1))
FROM json_each(:keys) AS j
CROSS JOIN instances AS i ON i.instance_id = j.value ->> 0
CROSS JOIN message_keys AS k ON k.instance_id = i.instance_id AND k.generation = i.generation AND k.key = j.value ->> 1;

-- add: keys of messages that were sent
INSERT INTO message_keys (instance_id, generation, key, updated_at)
SELECT value ->> 0, value ->> 1, value ->> 2, :now FROM json_each(:rows);

-- reply: replies to messages; the first reply to a message counts. The key is there unless it was old
INSERT INTO message_keys (instance_id, generation, key, reply, updated_at)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, :now FROM json_each(:rows) WHERE true
ON CONFLICT (instance_id, generation, key) DO UPDATE SET reply = excluded.reply, updated_at = excluded.updated_at
WHERE reply IS NULL;

-- states: what became of messages with a key, in order, with the row of the key
SELECT json_group_array(json_array(j.key, i.generation, i.name, i.status, i.error, k.id, k.reply IS NOT NULL))
FROM json_each(:keys) AS j
CROSS JOIN instances AS i ON i.instance_id = j.value ->> 0
LEFT JOIN message_keys AS k ON k.instance_id = i.instance_id AND k.generation = i.generation AND k.key = j.value ->> 1;

-- forget: keys that are old, with their replies
DELETE FROM message_keys WHERE id IN (
    SELECT id FROM message_keys WHERE updated_at < :cutoff ORDER BY updated_at LIMIT :window
);
