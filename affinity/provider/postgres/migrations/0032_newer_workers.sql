-- As before, among workers that take all the work that this one takes: sessions of a tag do not wait for workers without it.
CREATE OR REPLACE VIEW newer_workers AS
SELECT me.worker_id AS newer_than, n.worker_id, n.capacity - held.sessions AS room
FROM workers me
CROSS JOIN LATERAL (
    SELECT w.code_version, w.code_since FROM workers w
    WHERE w.app = me.app AND w.code_version IS NOT NULL AND w.locked_until > clock() AND NOT w.draining
      AND w.tags @> me.tags AND (me.only_tagged OR NOT w.only_tagged)
    ORDER BY w.code_since DESC, w.code_version LIMIT 1
) newest
JOIN workers n ON n.app = me.app AND n.code_version = newest.code_version AND n.locked_until > clock() AND NOT n.draining
    AND n.tags @> me.tags AND (me.only_tagged OR NOT n.only_tagged)
CROSS JOIN LATERAL (
    SELECT count(*) AS sessions FROM sessions s
    WHERE s.worker_id = n.worker_id AND s.incarnation = n.incarnation AND s.locked_until > clock()
) held
WHERE newest.code_version <> me.code_version AND newest.code_since > me.code_since;
