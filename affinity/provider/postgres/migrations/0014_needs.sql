-- What a worker must have among its names, beside the item's own, to be given an item that was given back as unknown.
ALTER TABLE worker_queue ADD COLUMN needs text COLLATE "C";

-- With the new column: a view keeps the columns that its table had.
CREATE OR REPLACE VIEW deliverable_items AS
SELECT q.* FROM worker_queue q
WHERE q.visible_at <= (SELECT clock())
  AND (q.lock_token IS NULL OR q.locked_until <= clock() OR NOT EXISTS (
      SELECT FROM workers w
      WHERE w.worker_id = q.lock_worker AND w.incarnation = q.lock_incarnation AND w.locked_until > clock()));
