-- mark: another text when a request was added or removed; by the index alone
SELECT count(*) || '/' || coalesce(max(created_at), 0) || '/' || coalesce(max(id), 0) FROM journal_requests;

-- list: pending requests, oldest first, with their journals, and the last one that was looked at
-- Parts: `all` of all journals, `some` of the journals of some sessions, or `below` of a journal and its descendants.
WITH page AS MATERIALIZED (
    SELECT r.*
-- [all
    FROM journal_requests AS r INDEXED BY journal_requests_by_creation
-- all]
-- [some
    FROM json_each(:session_ids) AS a
    CROSS JOIN journals AS j ON j.session_id = a.value
    CROSS JOIN journal_requests AS r ON r.journal_id = j.journal_id
-- some]
-- [below
    FROM (
        WITH RECURSIVE tree (journal_id, session_id) AS (
            SELECT o.journal_id, o.session_id FROM journals AS o WHERE o.session_id = :below
            UNION ALL
            SELECT c.journal_id, c.session_id
            FROM tree AS t CROSS JOIN journals AS c ON c.parent = t.session_id AND c.parent_journal = t.journal_id
            WHERE c.session_id IS NOT NULL
        )
        SELECT t.journal_id FROM tree AS t LIMIT :most) AS j
    CROSS JOIN journal_requests AS r ON r.journal_id = j.journal_id
-- below]
    WHERE (r.created_at, r.journal_id, r.id) > (:after_time, :after_journal, :after_place)
    ORDER BY r.created_at, r.journal_id, r.id
    LIMIT :window
),
judged AS MATERIALIZED (
    SELECT p.*, row_number() OVER (ORDER BY p.created_at, p.journal_id, p.id) AS n, j.session_id, j.kind AS journal_kind, j.title, j.owner, j.labels,
           coalesce(NOT j.closed AND (p.expires_at IS NULL OR p.expires_at > :now)
               AND (:any_kind OR p.kind IN (SELECT value FROM json_each(:kinds)))
               AND (:owner IS NULL OR j.owner = :owner)
               AND (:labels = '{}' OR NOT EXISTS (
                   SELECT 1 FROM json_each(:labels) AS w WHERE NOT EXISTS (
                       SELECT 1 FROM journal_labels AS l
                       WHERE l.key = w.key AND l.value = w.value AND l.journal_id = j.journal_id)))
               AND (:session_ids IS NULL OR j.session_id IN (SELECT value FROM json_each(:session_ids)))
               AND (:prefix IS NULL OR substr(j.session_id, 1, length(:prefix)) = :prefix)
               -- An instance that is gone is created again by the answer.
               AND coalesce((SELECT i.status FROM instances AS i WHERE i.instance_id = j.session_id), '')
                   NOT IN ('completed', 'failed', 'cancelled'), 0) AS fits
    FROM page AS p CROSS JOIN journals AS j ON j.journal_id = p.journal_id
)
SELECT w.n, w.fits, w.session_id, w.journal_id, w.journal_kind, w.title, w.owner, w.request_id, w.kind, w.payload, w.wake_id,
       w.created_at, w.expires_at, w.id, w.labels
FROM judged AS w WHERE w.fits OR w.n = :window
ORDER BY w.n
LIMIT :limit;
