-- The same answer: sessions are counted by worker in one pass, before their workers are looked up.
CREATE OR REPLACE VIEW desired_workers AS
SELECT d.held, d.waiting, d.capacity::float8, ceil((d.held + d.waiting) / d.capacity)::integer AS desired
FROM (
    SELECT (
        SELECT coalesce(sum(h.sessions), 0)::bigint FROM (
            SELECT s.worker_id, s.incarnation, count(*) AS sessions
            FROM sessions s WHERE s.locked_until > (SELECT clock())
            GROUP BY s.worker_id, s.incarnation
        ) h JOIN workers w ON w.worker_id = h.worker_id AND w.incarnation = h.incarnation
        WHERE w.locked_until > clock()
    ) AS held, (
        -- Sessions with work, and without a holder. The routes are those of any worker, with and without an offer, and
        -- of workers that died: where none is left, no sweep changes them.
        SELECT count(DISTINCT q.session_id)
        FROM (
            SELECT session_id, visible_at FROM worker_queue WHERE route >= 'new' AND route < 'new;'
            UNION ALL
            SELECT q.session_id, q.visible_at
            FROM workers w JOIN worker_queue q ON q.route = 'w:' || w.worker_id
            WHERE w.locked_until <= clock()
        ) q
        WHERE q.visible_at <= (SELECT clock())
          AND NOT EXISTS (SELECT FROM held_sessions h WHERE h.session_id = q.session_id)
    ) AS waiting, coalesce(
        -- The mean of those that take sessions now; else of those that did last; else the option's default.
        (SELECT avg(w.capacity) FROM workers w WHERE w.capacity > 0 AND w.locked_until > clock() AND NOT w.draining),
        (SELECT avg(w.capacity) FROM workers w WHERE w.capacity > 0),
        100
    ) AS capacity
) d;
