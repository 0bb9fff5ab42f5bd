-- What a worker must have among its names, beside the item's own, to be given an item that was given back as unknown.
ALTER TABLE worker_queue ADD COLUMN needs TEXT;
