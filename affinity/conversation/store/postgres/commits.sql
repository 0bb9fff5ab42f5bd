-- fences: writes to journals that do not pass
SELECT 'conversation', w.n
FROM unnest(%(write_session)s, %(write_journal)s, %(write_base)s, %(write_creations)s, %(write_home)s, %(write_epoch)s)
     WITH ORDINALITY AS w (session_id, journal_id, base, creations, home, epoch, n)
LEFT JOIN journals j ON j.session_id = w.session_id AND j.journal_id = w.journal_id
WHERE j.processed IS DISTINCT FROM w.base
   OR (w.creations IS NOT NULL OR w.home IS NOT NULL) AND NOT creations_fit(w.creations, w.home, w.epoch)

-- ack_tables: the journals that the parts of acks write; `fenced` has those whose writes pass
), reserved AS MATERIALIZED (
    -- Includes the journals that the wakes append to: all journals of a statement are locked in one order.
    SELECT j.session_id FROM journals j
    WHERE j.session_id = ANY (%(write_session)s || %(write_also)s) AND (SELECT count(*) FROM record) >= 0
    ORDER BY j.session_id FOR NO KEY UPDATE
), fenced AS MATERIALIZED (
    SELECT w.n, w.place
    FROM unnest(%(write_ack)s, %(write_session)s, %(write_journal)s, %(write_base)s, %(write_creations)s, %(write_home)s,
                %(write_epoch)s)
         WITH ORDINALITY AS w (n, session_id, journal_id, base, creations, home, epoch, place)
    JOIN journals j ON j.session_id = w.session_id
    WHERE j.journal_id = w.journal_id AND j.processed = w.base AND w.n IN (SELECT n FROM locked)
      AND (w.creations IS NULL AND w.home IS NULL OR creations_fit(w.creations, w.home, w.epoch))
      AND (SELECT count(*) FROM reserved) >= 0
    ORDER BY j.session_id FOR NO KEY UPDATE OF j
