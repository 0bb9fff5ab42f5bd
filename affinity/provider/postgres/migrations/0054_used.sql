-- What entries have used that are gone: a total does not shrink when retention removes them.

-- used: by writer, the number of these entries with a usage, and its sum by name: {"WRITER": [3, {"tokens": 30}]}. A writer is
-- the beginning that the ids of the wakes of one instance share.
ALTER TABLE journals ADD COLUMN used jsonb NOT NULL DEFAULT '{}';

DO $do$
DECLARE
    declared text := $sql$
    bytes bigint;
BEGIN
    removed := 0;$sql$;
    declares text := $sql$
    bytes bigint;
    entry record;
    usage jsonb;
    writers text[];
    usages jsonb[];
BEGIN
    removed := 0;$sql$;
    deletes text := $sql$
            DELETE FROM journal_entries e WHERE e.journal_id = one AND e.seq > low AND e.seq <= upto;$sql$;
    adds text := $sql$
            writers := '{}';
            usages := '{}';
            FOR entry IN
                SELECT regexp_replace(coalesce(e.wake_id, (
                        SELECT w.wake_id FROM journal_entries w
                        WHERE w.journal_id = e.journal_id AND w.seq > e.seq AND w.wake_id IS NOT NULL
                        ORDER BY w.seq LIMIT 1), ''), '-[^-]*-[^-]*$', '') AS writer, e.payload
                FROM find_entries_1(one, low, upto + 1, '{}', NULL, NULL, false, false, upto - low) o
                -- OFFSET 0: by the key, whatever statistics say of the number of entries.
                CROSS JOIN LATERAL (
                    SELECT n.* FROM journal_entries n WHERE n.journal_id = o.owner AND n.seq = o.seq OFFSET 0) e
                WHERE e.payload LIKE '%"usage"%'
                ORDER BY e.seq
            LOOP
                BEGIN
                    -- jsonb has no NUL.
                    usage := replace(entry.payload, '\u0000', '\u0001')::jsonb -> 'usage';
                EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
                    CONTINUE; -- a payload that the database cannot read stops no retention
                END;
                IF jsonb_typeof(usage) = 'object' THEN
                    writers := writers || entry.writer;
                    usages := usages || usage;
                END IF;
            END LOOP;
            UPDATE journals c SET used = c.used || added.used
            FROM (
                SELECT jsonb_object_agg(w.writer, jsonb_build_array(
                    w.entries + coalesce((j.used -> w.writer ->> 0)::bigint, 0),
                    coalesce(j.used -> w.writer -> 1, '{}') || (
                        SELECT coalesce(jsonb_object_agg(n.name, n.total), '{}') FROM (
                            SELECT v.key AS name,
                                sum(v.value::numeric) + coalesce((j.used -> w.writer -> 1 ->> v.key)::numeric, 0) AS total
                            FROM unnest(writers, usages) AS u (writer, usage) CROSS JOIN LATERAL jsonb_each(u.usage) v
                            WHERE u.writer = w.writer AND jsonb_typeof(v.value) = 'number'
                            GROUP BY v.key) n))) AS used
                FROM (SELECT u.writer, count(*) AS entries FROM unnest(writers) AS u (writer) GROUP BY u.writer) w
            ) added
            WHERE c.journal_id = one AND added.used IS NOT NULL;$sql$;
    prune text := pg_get_functiondef('prune_journals_2'::regproc);
    columns text := 'lineage, operator, extras, oldest_at,';
    values text := $sql$_birth ->> 'operator', _birth ->> 'extras',$sql$;
    bear text := pg_get_functiondef('bear_journal_2'::regproc);
BEGIN
    ASSERT strpos(prune, declared) > 0 AND strpos(prune, deletes) > 0;
    ASSERT strpos(bear, columns) > 0 AND strpos(bear, values) > 0;
    EXECUTE replace(replace(prune, declared, declares), deletes, adds || deletes);
    EXECUTE replace(replace(bear, columns, 'lineage, operator, extras, used, oldest_at,'), values,
        values || $sql$
        coalesce(merged.used, '{}') || coalesce(base.used, '{}'),$sql$);
END $do$;
