-- What wakes append in place of what is refused: see `JournalAppend.if_refused`.

-- Appends, after append_journals_1 whose result is given, what belongs to the places that were refused: an array of objects,
-- each with the place. REFUSAL_MARK in an entry becomes the outcome. Returns how many there were.
CREATE FUNCTION bounce_journals_1(_places bigint[], _outcomes text[], _bounces json) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    session text[]; kind text[]; entry_kind text[]; entry text[]; event text[]; wake text[]; input boolean[]; message text[];
    round bigint[];
BEGIN
    SELECT array_agg(b.session ORDER BY b.n), array_agg(b.kind ORDER BY b.n), array_agg(b.entry_kind ORDER BY b.n),
        array_agg(replace(b.entry, '"\u001a"', to_json(p.outcome)::text) ORDER BY b.n), array_agg(b.event ORDER BY b.n),
        array_agg(b.wake ORDER BY b.n), array_agg(b.input ORDER BY b.n), array_agg(b.message ORDER BY b.n),
        array_agg(b.round ORDER BY b.n)
    INTO session, kind, entry_kind, entry, event, wake, input, message, round
    FROM unnest(_places, _outcomes) AS p (place, outcome)
    JOIN (
        -- Gaps in the rounds of a session do no harm.
        SELECT x.*, row_number() OVER (PARTITION BY x.session ORDER BY x.n) AS round
        FROM ROWS FROM (
            json_to_recordset(_bounces) AS (
                place bigint, session text, kind text, entry_kind text, entry text, event text, wake text, input boolean,
                message text)
        ) WITH ORDINALITY AS x (place, session, kind, entry_kind, entry, event, wake, input, message, n)
    ) b ON b.place = p.place
    WHERE p.outcome <> 'repeated';
    IF session IS NOT NULL THEN
        PERFORM FROM append_journals_1(session, kind, entry_kind, entry, event, wake, input, message,
            array_fill(NULL::bigint, ARRAY[cardinality(session)]), _round => round,
            _rounds => (SELECT max(r.n) FROM unnest(round) AS r (n)));
    END IF;
    RETURN coalesce(cardinality(session), 0);
END $$;
