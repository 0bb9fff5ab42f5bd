-- payloads: of some work items, in order, as many as fit; each with the bytes of all up to it
-- Sizes are summed first, so that a payload that does not fit is never held in memory together with others.
WITH sized AS MATERIALIZED (
    SELECT j.key AS place, q.id, length(CAST(q.payload AS BLOB)) AS size
    FROM json_each(:ids) AS j CROSS JOIN worker_queue AS q ON q.id = j.value
), summed AS (
    SELECT id, size, sum(size) OVER (ORDER BY place ROWS UNBOUNDED PRECEDING) AS total FROM sized
)
SELECT json_group_array(json_array(q.id, q.payload, summed.total))
FROM summed CROSS JOIN worker_queue AS q ON q.id = summed.id
WHERE summed.total - summed.size < :max_bytes;
