-- Roles that `affinity migrate` was asked to give rights to, so that it gives them those to later objects too: see
-- affinity/provider/postgres/rights.py. Roles that were given all rights by hand are among them.
CREATE TABLE granted_roles (
    role text COLLATE "C" PRIMARY KEY,
    kind text COLLATE "C" NOT NULL CHECK (kind IN ('client', 'worker'))
);
INSERT INTO granted_roles (role, kind)
SELECT DISTINCT pg_get_userbyid(a.grantee)::text, 'worker'
FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a
WHERE c.oid = 'instances'::regclass AND a.privilege_type = 'DELETE' AND a.grantee NOT IN (0, c.relowner);

-- Limits of this database, none or one row. NULL: there is none.
CREATE TABLE quotas (
    instances bigint,      -- rows of that table
    unread_events bigint,  -- of one instance
    instance_bytes bigint  -- of one instance: events of its present execution, and messages that wait for it
);
-- How many instances there are, in parts, so that those who create them at the same time do not wait for each other. Kept
-- by triggers that are there while there is a quota of them.
CREATE TABLE instance_counts (
    part integer PRIMARY KEY,
    instances bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);
-- How many bytes the first events of an execution have, so that each event is measured once. Only while there is a quota.
CREATE TABLE instance_sizes (
    instance_id text COLLATE "C" PRIMARY KEY,
    birth text COLLATE "C" NOT NULL,
    execution_id bigint NOT NULL,
    event_count integer NOT NULL,
    bytes bigint NOT NULL
) WITH (fillfactor = 70);

-- Deletions have parts of their own: theirs is locked last, that of creations before work items and sessions.
CREATE FUNCTION count_instances() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    number bigint := (SELECT count(*) FROM changed);
BEGIN
    IF number > 0 THEN
        INSERT INTO instance_counts AS c (part, instances)
        SELECT CASE TG_OP WHEN 'INSERT' THEN 1 ELSE -1 END * (1 + pg_backend_pid() % 16),
            CASE TG_OP WHEN 'INSERT' THEN number ELSE -number END
        ON CONFLICT (part) DO UPDATE SET instances = c.instances + excluded.instances;
    END IF;
    RETURN NULL;
END $$;

-- Needs the rights of the role that migrated: triggers come and go. They lock the table, so nothing else touches them.
CREATE FUNCTION set_quotas_1(_instances bigint, _unread_events bigint, _instance_bytes bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    counted boolean;
BEGIN
    LOCK TABLE quotas IN SHARE ROW EXCLUSIVE MODE; -- one after the other
    counted := EXISTS (SELECT FROM quotas q WHERE q.instances IS NOT NULL);
    IF counted AND _instances IS NULL THEN
        EXECUTE 'DROP TRIGGER instances_added ON instances';
        EXECUTE 'DROP TRIGGER instances_removed ON instances';
        DELETE FROM instance_counts;
    ELSIF _instances IS NOT NULL AND NOT counted THEN
        CREATE TRIGGER instances_added AFTER INSERT ON instances REFERENCING NEW TABLE AS changed
        FOR EACH STATEMENT EXECUTE FUNCTION count_instances();
        CREATE TRIGGER instances_removed AFTER DELETE ON instances REFERENCING OLD TABLE AS changed
        FOR EACH STATEMENT EXECUTE FUNCTION count_instances();
        INSERT INTO instance_counts (part, instances) SELECT 0, count(*) FROM instances;
    END IF;
    IF _instance_bytes IS NULL THEN
        DELETE FROM instance_sizes;
    END IF;
    DELETE FROM quotas;
    INSERT INTO quotas (instances, unread_events, instance_bytes) VALUES (_instances, _unread_events, _instance_bytes);
END $$;

-- The two writes of a client, with the rights of the role that migrated: a client needs none to any table for them, and
-- writes nothing else. The number in the name is for releases that run side by side.

-- Creates instances with their start messages; those whose id was there are reported to their parents, where asked. Returns
-- the positions of the new ones; or, when a quota refuses the batch, one row that names it.
CREATE FUNCTION create_instances_1(
    _instance text[], _birth text[], _name text[], _version text[], _start text[], _parent text[], _parent_birth text[],
    _delay float8[], _on_exists text[], _on_deleted text[], _session text[]
) RETURNS TABLE (n bigint, quota text, allowed bigint) LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    most quotas;
    added bigint;
BEGIN
    SELECT * INTO most FROM quotas;
    IF most.instance_bytes < (SELECT max(octet_length(s.start)) FROM unnest(_start) AS s (start)) THEN
        RETURN QUERY SELECT NULL::bigint, 'instance_bytes', most.instance_bytes;
        RETURN;
    ELSIF most.instances IS NOT NULL THEN
        SELECT count(DISTINCT w.instance_id) INTO added FROM unnest(_instance) AS w (instance_id)
        WHERE NOT EXISTS (SELECT FROM instances i WHERE i.instance_id = w.instance_id);
        IF added > 0 AND added + (SELECT sum(c.instances) FROM instance_counts c) > most.instances THEN
            RETURN QUERY SELECT NULL::bigint, 'instances', most.instances;
            RETURN;
        END IF;
    END IF;
    RETURN QUERY WITH wanted AS MATERIALIZED (
        SELECT w.instance_id, w.n, row_number() OVER (PARTITION BY w.instance_id ORDER BY w.n) AS copy
        FROM unnest(_instance) WITH ORDINALITY AS w (instance_id, n)
    ), created AS (
        INSERT INTO instances (instance_id, birth, name, version, parent_id, parent_birth, on_deleted, session_id,
            created_at, updated_at)
        SELECT w.instance_id, _birth[w.n], _name[w.n], _version[w.n], _parent[w.n], _parent_birth[w.n],
            _on_deleted[w.n], _session[w.n], (SELECT clock()), (SELECT clock())
        FROM wanted w WHERE w.copy = 1 ORDER BY w.instance_id
        ON CONFLICT (instance_id) DO NOTHING
        RETURNING instance_id
    ), outcome AS MATERIALIZED (
        SELECT w.n, w.instance_id,
            (w.copy = 1 AND w.instance_id IN (SELECT c.instance_id FROM created c)) IS TRUE AS is_new
        FROM wanted w
    ), started AS (
        INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
        SELECT o.instance_id, 'new', (SELECT clock()) + _delay[o.n] * interval '1 s', _start[o.n]
        FROM outcome o WHERE o.is_new ORDER BY o.n
    ), reported AS (
        INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
        SELECT r.instance_id, r.route, (SELECT clock()), _on_exists[o.n]
        FROM outcome o JOIN message_routes r ON r.instance_id = _parent[o.n]
        WHERE NOT o.is_new AND _on_exists[o.n] IS NOT NULL
        ORDER BY o.n
    )
    SELECT o.n, NULL::text, NULL::bigint FROM outcome o WHERE o.is_new;
END $$;

-- Sends messages to instances that have not finished, and that have not as many unread ones, or as many bytes, as a message
-- with a limit may find. Returns what became of those whose instance is there.
CREATE FUNCTION send_messages_1(
    _instance text[], _birth text[], _payload text[], _delay float8[], _timer_execution bigint[], _timer_id bigint[],
    _unread_limit bigint[]
) RETURNS TABLE (n bigint, delivery text) LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    most quotas;
BEGIN
    SELECT * INTO most FROM quotas;
    IF most.instance_bytes IS NOT NULL THEN
        INSERT INTO instance_sizes AS s (instance_id, birth, execution_id, event_count, bytes)
        SELECT i.instance_id, i.birth, i.execution_id, i.event_count, coalesce(z.bytes, 0) + (
            SELECT coalesce(sum(octet_length(h.event)), 0) FROM history h
            WHERE h.instance_id = i.instance_id AND h.execution_id = i.execution_id
              AND h.event_id > coalesce(z.event_count, 0) AND h.event_id <= i.event_count)
        FROM (
            SELECT DISTINCT w.instance_id FROM unnest(_instance, _unread_limit) AS w (instance_id, unread_limit)
            WHERE w.unread_limit IS NOT NULL ORDER BY w.instance_id) w
        JOIN instances i ON i.instance_id = w.instance_id
        LEFT JOIN instance_sizes z
            ON z.instance_id = i.instance_id AND z.birth = i.birth AND z.execution_id = i.execution_id
        WHERE z.event_count IS DISTINCT FROM i.event_count
        ON CONFLICT (instance_id) DO UPDATE
        SET birth = excluded.birth, execution_id = excluded.execution_id, event_count = excluded.event_count,
            bytes = excluded.bytes;
    END IF;
    RETURN QUERY WITH message AS MATERIALIZED (
        SELECT m.n, m.instance_id, r.route,
            CASE WHEN m.unread_limit IS NOT NULL THEN i.unread + (
                SELECT count(*) FROM (
                    SELECT FROM orchestrator_queue q WHERE q.instance_id = m.instance_id AND q.timer_execution IS NULL
                    LIMIT least(m.unread_limit, most.unread_events)
                ) unread
            ) + row_number() OVER (PARTITION BY m.instance_id, m.unread_limit ORDER BY m.n)
                > least(m.unread_limit, most.unread_events)
            ELSE false END AS is_full,
            CASE WHEN m.unread_limit IS NOT NULL AND most.instance_bytes IS NOT NULL THEN (
                SELECT z.bytes FROM instance_sizes z WHERE z.instance_id = m.instance_id AND z.birth = i.birth
            ) + (
                SELECT coalesce(sum(octet_length(q.payload)), 0) FROM orchestrator_queue q
                WHERE q.instance_id = m.instance_id AND q.timer_execution IS NULL
            ) + sum(octet_length(_payload[m.n])) OVER (PARTITION BY m.instance_id ORDER BY m.n) > most.instance_bytes
            ELSE false END AS is_over
        FROM unnest(_instance, _birth, _unread_limit) WITH ORDINALITY AS m (instance_id, birth, unread_limit, n)
        JOIN instances i ON i.instance_id = m.instance_id AND (m.birth IS NULL OR i.birth = m.birth)
        LEFT JOIN message_routes r ON r.instance_id = m.instance_id
    ), sent AS (
        INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload, timer_execution, timer_id)
        SELECT m.instance_id, m.route, (SELECT clock()) + _delay[m.n] * interval '1 s', _payload[m.n],
            _timer_execution[m.n], _timer_id[m.n]
        FROM message m WHERE m.route IS NOT NULL AND NOT m.is_full AND NOT m.is_over
        ORDER BY m.n
    )
    SELECT m.n, CASE WHEN m.route IS NULL THEN 'finished' WHEN m.is_full THEN 'full' WHEN m.is_over THEN 'over_quota'
                     ELSE 'delivered' END
    FROM message m;
END $$;

CREATE OR REPLACE FUNCTION forget_ended_executions() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    DELETE FROM ended_executions WHERE instance_id = OLD.instance_id;
    DELETE FROM instance_sizes WHERE instance_id = OLD.instance_id;
    RETURN NULL;
END $$;

-- Nobody may call them who was not told to be a client or a worker; those above are.
DO $do$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY[
        'create_instances_1(text[], text[], text[], text[], text[], text[], text[], float8[], text[], text[], text[])',
        'send_messages_1(text[], text[], text[], float8[], bigint[], bigint[], bigint[])',
        'forget_ended_executions()', 'count_instances()']
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', name, current_schema);
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', name);
    END LOOP;
END $do$;
