-- read_identity: the name of the database, and whether its payloads are encoded
SELECT name, encoded, offloaded, check_value FROM database_identity

-- mark_encoded: they are, with this check value, if the former one is still there
UPDATE database_identity SET encoded = true, check_value = %(check_value)s
WHERE check_value IS NOT DISTINCT FROM %(former)s::text
RETURNING encoded

-- mark_offloaded: large payloads are in a blob store
UPDATE database_identity SET offloaded = true WHERE NOT offloaded
