-- gates: the lines of some
SELECT json_group_array(json_array(l.gate, l.line_id, l.domain, l.keys, l.blocked_on IS NOT NULL))
FROM json_each(:gates) AS j CROSS JOIN limit_lines AS l ON l.gate = j.value;

-- add: lines
INSERT INTO limit_lines (gate, priority, keys, domain, share, weight, used_at)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, :now FROM json_each(:rows);

-- link: lines to their keys
INSERT INTO limit_line_keys (line_id, key_id)
SELECT l.line_id, j.value ->> 1 FROM json_each(:rows) AS j CROSS JOIN limit_lines AS l ON l.gate = j.value ->> 0;

-- ready: lines that may be served
line_id, priority, keys, domain, share, weight, waiting, virtual_next, oldest
FROM limit_lines WHERE domain = :domain AND waiting > 0 AND blocked_on IS NULL;

-- columns: of a line; virtual_next as text, with all its digits, since the next page begins behind it
json_group_array(json_array(
    line_id, priority, keys, printf('%!.17g', virtual_next), domain, share, weight, waiting, oldest));

-- first_page: the first lines of a domain, and the ones whose work waits since a time, the oldest first
SELECT json_array(
    (SELECT
        -- include columns
     FROM (SELECT
        -- include ready
           ORDER BY priority DESC, virtual_next, line_id LIMIT :most)),
    (SELECT
        -- include columns
     FROM (SELECT
        -- include ready
             AND oldest <= :aged_since ORDER BY oldest LIMIT :most)));

-- next_page: the lines behind one
SELECT
    -- include columns
FROM (SELECT
    -- include ready
      AND (-priority, virtual_next, line_id) > (-:priority, :virtual_next, :line_id)
      AND priority <= :priority
      ORDER BY priority DESC, virtual_next, line_id LIMIT :most);

-- work: the first of lines, behind what has been read
SELECT json_group_array(json_array(value ->> 0, (
    SELECT json_group_array(json_array(work_id, item_id, instance_id, since)) FROM (
        SELECT work_id, item_id, instance_id, since FROM limited_work
        WHERE line_id = j.value ->> 0 AND admitted_at IS NULL AND (since, work_id) > (
            coalesce((SELECT w.since FROM limited_work AS w WHERE w.work_id = j.value ->> 1), -1.0), j.value ->> 1)
        ORDER BY since, work_id LIMIT :most))))
FROM json_each(:rows) AS j;

-- blocked: the first lines that are blocked on keys
SELECT json_group_array(json_array(j.value, (
    SELECT json_group_array(json_array(line_id, domain)) FROM (
        SELECT line_id, domain FROM limit_lines WHERE blocked_on = j.value
        ORDER BY priority DESC, virtual_next, line_id LIMIT :most))))
FROM json_each(:key_ids) AS j;

-- unblock: lines
UPDATE limit_lines SET blocked_on = NULL WHERE line_id IN (SELECT value FROM json_each(:rows));

-- use: lines
UPDATE limit_lines SET used_at = :now WHERE line_id IN (SELECT value FROM json_each(:rows)) AND used_at < :before;

-- write: what an admission has changed
UPDATE limit_lines SET
    waiting = j.value ->> 1, virtual_next = j.value ->> 2, blocked_on = j.value ->> 3, used_at = :now,
    oldest = (
        SELECT since FROM limited_work AS w WHERE w.line_id = limit_lines.line_id AND w.admitted_at IS NULL
        ORDER BY since, work_id LIMIT 1)
FROM json_each(:rows) AS j WHERE limit_lines.line_id = j.value ->> 0;

-- write_shares: the virtual times of the lines that share one
UPDATE limit_lines SET virtual_next = j.value ->> 3
FROM json_each(:rows) AS j
WHERE limit_lines.share = j.value ->> 0 AND limit_lines.domain = j.value ->> 1 AND limit_lines.priority = j.value ->> 2
  AND limit_lines.waiting > 0 AND limit_lines.virtual_next < j.value ->> 3;
