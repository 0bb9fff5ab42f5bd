-- read: the name of the database, and whether its payloads are encoded
SELECT name, encoded, offloaded, check_value FROM database_identity;

-- mark: they are, with this check value, if the former one is still there
UPDATE database_identity SET encoded = 1, check_value = :check_value WHERE check_value IS :former;

-- mark_offloaded: large payloads are in a blob store
UPDATE database_identity SET offloaded = 1;
