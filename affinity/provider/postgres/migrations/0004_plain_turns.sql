-- How a statement takes back what it has written so far: errors.py makes it a contention. The message is for the server's
-- log.
CREATE FUNCTION refuse() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION 'affinity: not every turn of a batch passes; now each is judged by itself' USING ERRCODE = 'ZT001';
END $$;

-- A CHECK is read and compiled anew by each statement that updates a row, whatever it sets. A domain is asked by those
-- that set the column.
CREATE DOMAIN instance_status AS text COLLATE "C"
    CHECK (VALUE IN ('pending', 'running', 'completed', 'failed', 'cancelled'));
ALTER TABLE instances
    DROP CONSTRAINT instances_status_check,
    ALTER COLUMN status DROP DEFAULT,
    ALTER COLUMN status TYPE instance_status,
    ALTER COLUMN status SET DEFAULT 'pending';
