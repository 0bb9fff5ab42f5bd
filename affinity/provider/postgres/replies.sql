-- replies: the states of messages with a key, with their replies, up to as many bytes as are wanted
SELECT a.n, i.generation, i.name, i.status, i.error, k.key IS NOT NULL, k.reply IS NOT NULL,
    CASE WHEN sum(octet_length(k.reply)) OVER (ORDER BY a.n) - octet_length(k.reply) < %(max_bytes)s THEN k.reply END
FROM unnest(%(instance)s, %(key)s) WITH ORDINALITY AS a (instance_id, key, n)
JOIN instances i ON i.instance_id = a.instance_id
LEFT JOIN LATERAL ( -- one lookup in the index for each key, with statistics of any kind
    SELECT m.key, m.reply FROM message_keys m
    WHERE m.instance_id = i.instance_id AND m.generation = i.generation AND m.key = a.key LIMIT 1
) k ON true
