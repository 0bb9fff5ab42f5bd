-- How many sessions a worker holds, as it said last. NULL: it has not said it.
ALTER TABLE workers ADD COLUMN sessions INTEGER;

-- Whether no worker may offer sessions to others.
INSERT INTO counters (name, value) VALUES ('rebalancing_suspended', 0);
