-- Flags of elements that lack what is asked for are false, not NULL; and the children of a record are read in steps.
-- oldest code: 49

-- Where new items stand in the orders of their sessions, which are locked: by element, the number, and whether another item
-- is before it. An element that is NULL has no number, and none is before it.
CREATE OR REPLACE FUNCTION places_in_order(_session text[], OUT numbers bigint[], OUT blocked boolean[]) LANGUAGE plpgsql AS $$
BEGIN
    SELECT array_agg(p.number ORDER BY p.k), array_agg((p.number > 1) IS TRUE ORDER BY p.k) INTO numbers, blocked
    FROM (
        SELECT s.k, CASE WHEN s.id IS NOT NULL THEN row_number() OVER (PARTITION BY s.id ORDER BY s.k) + coalesce((
            SELECT q.order_number FROM worker_queue q WHERE q.order_session = s.id
            ORDER BY q.order_number DESC LIMIT 1), 0) END AS number
        FROM unnest(_session) WITH ORDINALITY AS s (id, k)) p;
END $$;

-- As before, but for `is_over`: the size of an instance is not there when the limit was lifted since it was measured.
CREATE OR REPLACE FUNCTION send_messages_1(
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
            (CASE WHEN m.unread_limit IS NOT NULL AND most.instance_bytes IS NOT NULL THEN (
                SELECT z.bytes FROM instance_sizes z WHERE z.instance_id = m.instance_id AND z.birth = i.birth
            ) + (
                SELECT coalesce(sum(octet_length(q.payload)), 0) FROM orchestrator_queue q
                WHERE q.instance_id = m.instance_id AND q.timer_execution IS NULL
            ) + sum(octet_length(_payload[m.n])) OVER (PARTITION BY m.instance_id ORDER BY m.n) > most.instance_bytes
            END) IS TRUE AS is_over
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
DO $do$ BEGIN
    EXECUTE format('ALTER FUNCTION send_messages_1 SET search_path = %I, pg_temp', current_schema);
END $do$;

-- The children of a record in steps: a page ends at a place of this index.
CREATE INDEX session_states_children ON session_states (parent, updated_second, session_id) WHERE parent IS NOT NULL;
DROP INDEX session_states_parent;
