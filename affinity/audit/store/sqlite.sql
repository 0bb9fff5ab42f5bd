-- write: entries, in the transaction of the changes that they record
INSERT INTO audit (at, stated_user, source, action, kind, target, outcome, succeeded, details)
SELECT :now, json_extract(value, '$.user'), json_extract(value, '$.source'), json_extract(value, '$.action'),
    json_extract(value, '$.kind'), json_extract(value, '$.target'), json_extract(value, '$.outcome'),
    json_extract(value, '$.succeeded'), json_extract(value, '$.details')
FROM json_each(:rows) ORDER BY key;

-- list: one page of entries, newest first
-- Only the parts that a filter needs are run.
SELECT entry_id, at, stated_user, source, NULL, action, kind, target, outcome, succeeded, details
FROM audit
WHERE (at, entry_id) < (:before, :before_id)
-- [user
  AND stated_user = :user
-- user]
-- [source
  AND source = :source
-- source]
-- [action
  AND action = :action
-- action]
-- [target
  AND target = :target
-- target]
-- [succeeded
  AND succeeded = :succeeded
-- succeeded]
-- [since
  AND at >= :since
-- since]
-- [until
  AND at < :until
-- until]
ORDER BY at DESC, entry_id DESC LIMIT :limit;

-- remove: old entries, up to a number
DELETE FROM audit WHERE entry_id IN (SELECT entry_id FROM audit WHERE at < :before ORDER BY at, entry_id LIMIT :limit);
