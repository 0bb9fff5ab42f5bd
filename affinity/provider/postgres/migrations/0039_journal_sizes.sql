-- Retention of journals finds those that are over a bound of entries or bytes by an index.

-- A class grows with the logarithm of its number: by one for a quarter more. So what is indexed changes seldom as a journal
-- grows, and never in one of up to 64 entries and 64 KiB: the statements that append change no index of `journals` then.
ALTER TABLE journals
    ADD COLUMN entries_class smallint
        GENERATED ALWAYS AS ((ln(greatest(last_seq - first_seq + 1, 64)::float8) * 4)::smallint) STORED,
    ADD COLUMN size_class smallint GENERATED ALWAYS AS ((ln(greatest(size, 65536)::float8) * 4)::smallint) STORED;
CREATE INDEX journals_entries_class ON journals (entries_class, journal_id);
CREATE INDEX journals_size_class ON journals (size_class, journal_id);

-- As prune_journals_1, one step at a time: the first journals behind _after that are over a bound, _window of them at most.
-- `goes_on` is where the next step begins; NULL: this was the last. With _dry, what would be removed is counted.
CREATE FUNCTION prune_journals_2(
    _age float8, _entries bigint, _size bigint, _limit bigint, _after bigint, _window bigint, _dry boolean,
    OUT removed bigint, OUT goes_on bigint
) LANGUAGE plpgsql
-- The bounds decide which index serves.
SET plan_cache_mode = force_custom_plan SET search_path FROM CURRENT AS $$
DECLARE
    cutoff timestamptz := clock() - _age * interval '1 s';
    rest bigint := CASE WHEN _dry THEN 9223372036854775807 ELSE _limit END;
    seen bigint := 0;
    one bigint;
    j journals;
    low bigint;    -- behind what is removed already
    high bigint;   -- the last that may be removed
    upto bigint;   -- the last that is
    own bigint;    -- the same of its own
    bytes bigint;
BEGIN
    removed := 0;
    goes_on := _after;
    FOR one IN
        SELECT c.journal_id FROM (
            SELECT a.journal_id FROM journals a WHERE a.oldest_at < cutoff AND a.journal_id > _after
            UNION
            SELECT s.journal_id FROM journals s
            WHERE s.size_class >= (ln(greatest(_size, 65536)::float8) * 4)::smallint AND s.size > _size
              AND s.journal_id > _after
            UNION
            SELECT n.journal_id FROM journals n
            WHERE n.entries_class >= (ln(greatest(_entries, 64)::float8) * 4)::smallint
              AND n.last_seq - n.first_seq >= _entries AND n.journal_id > _after) o
        JOIN journals c USING (journal_id)
        WHERE c.session_id IS NOT NULL AND c.first_seq <= c.last_seq
          AND NOT EXISTS (
              SELECT FROM journals f WHERE f.base_id = c.journal_id AND f.first_seq <= least(f.base_seq, c.first_seq))
        ORDER BY c.journal_id LIMIT _window
    LOOP
        seen := seen + 1;
        -- Those that are locked are left for the next round, so that it waits for no other transaction. A journal that is
        -- about to continue this one holds a share of its key.
        IF _dry THEN
            SELECT * INTO j FROM journals c WHERE c.journal_id = one;
        ELSE
            SELECT * INTO j FROM journals c WHERE c.journal_id = one FOR UPDATE SKIP LOCKED;
        END IF;
        IF NOT FOUND THEN
            goes_on := one;
            CONTINUE;
        END IF;
        low := j.first_seq - 1;
        high := least((
            WITH RECURSIVE place AS (
                SELECT j.journal_id, j.base_id, j.base_seq, j.last_seq AS upto
                UNION ALL
                SELECT b.journal_id, b.base_id, b.base_seq, least(p.upto, p.base_seq)
                FROM place p JOIN journals b ON b.journal_id = p.base_id
                WHERE p.base_seq > j.processed
            )
            SELECT min(i.seq) - 1
            FROM place p CROSS JOIN LATERAL (
                SELECT e.seq FROM journal_entries e
                WHERE e.journal_id = p.journal_id AND e.is_input AND e.seq > j.processed AND e.seq <= p.upto
                ORDER BY e.seq LIMIT 1) i),
            (SELECT min(r.seq) - 1 FROM journal_requests r WHERE r.journal_id = one),
            (SELECT min(f.first_seq) - 1 FROM journals f WHERE f.base_id = one AND f.first_seq <= f.base_seq),
            j.last_seq);
        high := low + least(high - low, rest);
        upto := low;
        IF low < j.base_seq THEN
            upto := greatest(low, least(high, j.base_seq, CASE
                WHEN (j.created_at < cutoff) IS TRUE OR (j.size > _size) IS TRUE THEN j.base_seq
                ELSE coalesce(j.last_seq - _entries, 0) END));
        END IF;
        bytes := 0;
        IF upto >= coalesce(j.base_seq, 0) AND upto < high THEN
            SELECT max(e.seq) FILTER (WHERE e.goes), coalesce(sum(e.bytes) FILTER (WHERE e.goes), 0) INTO own, bytes
            FROM (
                SELECT e.seq, e.bytes, bool_and(e.goes) OVER (ORDER BY e.seq) AS goes
                FROM (
                    SELECT e.seq, octet_length(e.payload) AS bytes,
                        (e.recorded_at < cutoff) IS TRUE OR (e.seq <= j.last_seq - _entries) IS TRUE
                        OR (j.size - sum(octet_length(e.payload)) OVER (ORDER BY e.seq) + octet_length(e.payload)
                            > _size) IS TRUE AS goes
                    FROM (
                        SELECT * FROM journal_entries o
                        WHERE o.journal_id = one AND o.seq > upto AND o.seq <= high ORDER BY o.seq LIMIT rest) e) e) e;
            upto := coalesce(own, upto);
        END IF;
        removed := removed + greatest(upto - low, 0);
        rest := rest - greatest(upto - low, 0);
        IF upto > low AND NOT _dry THEN
            DELETE FROM journal_entries e WHERE e.journal_id = one AND e.seq > low AND e.seq <= upto;
            UPDATE journals c
            SET first_seq = upto + 1, size = c.size - bytes,
                oldest_at = CASE WHEN upto < c.base_seq THEN c.oldest_at ELSE coalesce(
                    (SELECT e.recorded_at FROM journal_entries e WHERE e.journal_id = one AND e.seq > upto
                     ORDER BY e.seq LIMIT 1), clock()) END
            WHERE c.journal_id = one;
        END IF;
        IF rest <= 0 THEN
            RETURN; -- there may be more of this journal
        END IF;
        goes_on := one;
    END LOOP;
    IF seen < _window THEN
        goes_on := NULL;
    END IF;
END $$;
