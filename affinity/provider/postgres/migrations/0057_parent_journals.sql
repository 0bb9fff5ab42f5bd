-- Children know the journal of their parent, and not its name alone: see `JournalPage.parent_journal`. An import keeps the times
-- of its record of state.
-- oldest code: 50

ALTER TABLE journals ADD COLUMN parent_journal bigint;

DO $do$
DECLARE
    creates_missing text := pg_get_functiondef('create_missing_journals'::regproc);
    creates_child text := pg_get_functiondef('bear_journal_2'::regproc);
    columns text := 'INSERT INTO journals (journal_id, session_id, kind, parent, oldest_at,';
    parent text := '_start_parent[w.k], c.now,';
    new_times text := $sql$gen_random_uuid()::text, _now, _now
        WHERE _birth ->> 'state' IS NOT NULL;$sql$;
BEGIN
    ASSERT strpos(creates_missing, columns) > 0 AND strpos(creates_missing, parent) > 0
        AND strpos(creates_child, new_times) > 0;
    EXECUTE replace(replace(creates_missing, columns, replace(columns, 'parent,', 'parent, parent_journal,')), parent, $sql$_start_parent[w.k],
                (SELECT p.journal_id FROM journals p WHERE p.session_id = _start_parent[w.k]), c.now,$sql$);
    EXECUTE replace(creates_child, new_times, $sql$gen_random_uuid()::text,
            least((_birth ->> 'created_at')::timestamptz, _now), least((_birth ->> 'updated_at')::timestamptz, _now)
        WHERE _birth ->> 'state' IS NOT NULL;$sql$);
END $do$;
