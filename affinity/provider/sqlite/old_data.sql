-- rounds: the rows of rounds, with whether a step is due
SELECT name, place, removed, pause, due_at <= :now FROM rounds WHERE name IN (SELECT value FROM json_each(:names));

-- save_round: where its next step begins, and when
INSERT OR REPLACE INTO rounds (name, place, removed, pause, due_at) VALUES (:name, :place, :removed, :pause, :now + :wait);

-- old_records: the next records that were not written for long, each with whether nothing needs it
SELECT r.session_id, r.version, r.generation, r.updated_at,
    NOT (false
    -- conditions of guests
    )
    AND NOT EXISTS (SELECT 1 FROM session_holds AS h WHERE h.session_id = r.session_id AND h.until > :now)
    AND NOT EXISTS (
        SELECT 1 FROM instances AS i
        WHERE i.session_id = r.session_id AND i.status NOT IN ('completed', 'failed', 'cancelled'))
FROM session_states AS r
WHERE (r.updated_at, r.session_id) > (:after_time, :after_id) AND r.updated_at < :cutoff
ORDER BY r.updated_at, r.session_id LIMIT :window;
