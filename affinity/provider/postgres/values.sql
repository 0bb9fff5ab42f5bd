-- values: the values of some instances, or those of one key
SELECT v.instance_id, v.key, v.value FROM instance_values v
WHERE v.instance_id = ANY (%(instance)s) AND (%(key)s::text IS NULL OR v.key = %(key)s)
ORDER BY v.instance_id, v.key
