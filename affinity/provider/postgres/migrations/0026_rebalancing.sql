-- How many sessions a worker holds, as it said last. NULL: it has not said it.
ALTER TABLE workers ADD COLUMN sessions integer;

-- Whether no worker may offer sessions to others.
ALTER TABLE sweeps ADD COLUMN rebalancing_suspended boolean NOT NULL DEFAULT false;
