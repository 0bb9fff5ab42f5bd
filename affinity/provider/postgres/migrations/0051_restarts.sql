-- New generations of instances that have ended.
-- oldest code: 50

-- Restarts ended instances: each goes on in its next execution, as a new generation with its start message; the history
-- of the former one stays. Returns the positions of those that were in the generation `_ended`, of this name, and had
-- ended; or, when a quota refuses the batch, one row that names it.
CREATE FUNCTION restart_instances_1(
    _instance text[], _ended text[], _birth text[], _name text[], _version text[], _start text[], _session text[]
) RETURNS TABLE (n bigint, quota text, allowed bigint) LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    most bigint;
BEGIN
    SELECT q.instance_bytes INTO most FROM quotas q;
    IF most < (SELECT max(octet_length(s.start)) FROM unnest(_start) AS s (start)) THEN
        RETURN QUERY SELECT NULL::bigint, 'instance_bytes', most;
        RETURN;
    END IF;
    FOR n IN SELECT w.k FROM unnest(_instance) WITH ORDINALITY AS w (instance_id, k) ORDER BY w.instance_id, w.k LOOP
        UPDATE instances i
        SET birth = _birth[n], version = _version[n], execution_id = i.execution_id + 1, event_count = 0,
            status = 'pending', custom_status = NULL, output = NULL, error = NULL, parent_id = NULL,
            parent_birth = NULL, on_deleted = NULL, session_id = _session[n], owner_incarnation = NULL, claims = 0,
            unknown_since = NULL, unread = 0, updated_at = clock()
        WHERE i.instance_id = _instance[n] AND i.birth = _ended[n] AND i.name = _name[n]
          AND i.status IN ('completed', 'failed', 'cancelled');
        CONTINUE WHEN NOT FOUND;
        -- What was sent while the former generation ended is not for this one.
        PERFORM end_work_1(ARRAY[_instance[n]]);
        DELETE FROM session_watches w WHERE w.instance_id = _instance[n];
        DELETE FROM orchestrator_queue q WHERE q.instance_id = _instance[n];
        INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
        VALUES (_instance[n], 'new', clock(), _start[n]);
        RETURN NEXT;
    END LOOP;
END $$;

DO $do$
BEGIN
    EXECUTE format('ALTER FUNCTION restart_instances_1 SET search_path = %I, pg_temp', current_schema);
END $do$;
REVOKE EXECUTE ON FUNCTION restart_instances_1 FROM PUBLIC;
