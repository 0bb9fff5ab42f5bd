-- Creating, restarting, resetting and deleting instances, and sending messages to them.

-- The time at which a start message with these options is visible, if it is not now; else NULL.
CREATE FUNCTION start_time(_delay float8, _not_before float8) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
    now timestamptz;
    due timestamptz;
BEGIN
    IF coalesce(_delay, 0) <= 0 AND coalesce(_not_before, 0) <= 0 THEN
        RETURN NULL;
    END IF;
    now := clock();
    due := greatest(now + _delay * interval '1 s', to_timestamp(_not_before));
    RETURN CASE WHEN due > now THEN due END;
END $$;

-- Creates instances with their start messages, without a check of quotas, which apply to no turn. If an id is taken, the
-- parent gets its message `_on_exists`. Returns the positions of the new instances. With `_only`, other positions are left out.
CREATE FUNCTION add_instances(
    _instance text[], _generation text[], _name text[], _version text[], _start text[], _parent text[] = NULL,
    _parent_generation text[] = NULL, _delay float8[] = NULL, _on_exists text[] = NULL, _on_deleted text[] = NULL,
    _session text[] = NULL, _only bigint[] = NULL, _gate text[] = NULL, _limited boolean[] = NULL,
    _head_start float8[] = NULL, _not_before float8[] = NULL, _labels text[] = NULL
) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY WITH wanted AS MATERIALIZED (
        SELECT w.instance_id, w.n, row_number() OVER (PARTITION BY w.instance_id ORDER BY w.n) AS copy,
            s.starts_at,
            -- At its time it has to pass the gate also for a priority alone, which would show it before its time.
            CASE WHEN _limited[w.n] OR s.starts_at IS NOT NULL THEN _gate[w.n] END AS gate
        FROM unnest(_instance) WITH ORDINALITY AS w (instance_id, n),
            LATERAL (SELECT start_time(_delay[w.n], _not_before[w.n]) AS starts_at) s
        WHERE _only IS NULL OR w.n = ANY (_only)
    ), created AS (
        INSERT INTO instances (instance_id, generation, name, version, parent_id, parent_generation, on_deleted, session_id,
            created_at, updated_at, gate, limited, starts_at, waits_since, labels)
        SELECT w.instance_id, _generation[w.n], _name[w.n], _version[w.n], _parent[w.n], _parent_generation[w.n],
            _on_deleted[w.n], _session[w.n], (SELECT clock()), (SELECT clock()),
            w.gate, _limited[w.n], w.starts_at, CASE WHEN w.starts_at IS NOT NULL THEN (SELECT clock()) END, _labels[w.n]::jsonb
        FROM wanted w WHERE w.copy = 1 ORDER BY w.instance_id
        ON CONFLICT (instance_id) DO NOTHING
        RETURNING instance_id
    ), outcome AS MATERIALIZED (
        SELECT w.n, w.instance_id, w.starts_at, w.gate,
            (w.copy = 1 AND w.instance_id IN (SELECT c.instance_id FROM created c)) IS TRUE AS is_new
        FROM wanted w
    ), started AS (
        INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
        SELECT o.instance_id, CASE WHEN o.gate IS NULL THEN 'new' ELSE 'gate' END, coalesce(o.starts_at, (SELECT clock())
            - CASE WHEN o.gate IS NULL THEN coalesce(_head_start[o.n], 0) ELSE 0 END * interval '1 s'), _start[o.n]
        FROM outcome o WHERE o.is_new ORDER BY o.n
    ), reported AS (
        INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
        SELECT r.instance_id, r.route, (SELECT clock()), _on_exists[o.n]
        FROM outcome o JOIN message_routes r ON r.instance_id = _parent[o.n]
        WHERE NOT o.is_new AND _on_exists[o.n] IS NOT NULL
        ORDER BY o.n
    )
    SELECT o.n FROM outcome o WHERE o.is_new;
END $$;

-- Creates instances as `add_instances`; or, when a quota refuses the batch, none, and returns one row that names it.
CREATE FUNCTION create_instances(
    _instance text[], _generation text[], _name text[], _version text[], _start text[], _parent text[] = NULL,
    _parent_generation text[] = NULL, _delay float8[] = NULL, _on_exists text[] = NULL, _on_deleted text[] = NULL,
    _session text[] = NULL, _only bigint[] = NULL, _gate text[] = NULL, _limited boolean[] = NULL,
    _head_start float8[] = NULL, _not_before float8[] = NULL, _labels text[] = NULL
) RETURNS TABLE (n bigint, quota text, allowed bigint) LANGUAGE plpgsql AS $$
DECLARE
    most quotas;
    added bigint;
BEGIN
    SELECT * INTO most FROM quotas;
    IF most.instance_bytes < (
        SELECT max(octet_length(s.start)) FROM unnest(_start) WITH ORDINALITY AS s (start, k)
        WHERE _only IS NULL OR s.k = ANY (_only)) THEN
        RETURN QUERY SELECT NULL::bigint, 'instance_bytes', most.instance_bytes;
        RETURN;
    ELSIF most.instances IS NOT NULL THEN
        SELECT count(DISTINCT w.instance_id) INTO added FROM unnest(_instance) WITH ORDINALITY AS w (instance_id, k)
        WHERE (_only IS NULL OR w.k = ANY (_only))
          AND NOT EXISTS (SELECT FROM instances i WHERE i.instance_id = w.instance_id);
        IF added > 0 AND added + (SELECT sum(c.instances) FROM instance_counts c) > most.instances THEN
            RETURN QUERY SELECT NULL::bigint, 'instances', most.instances;
            RETURN;
        END IF;
    END IF;
    RETURN QUERY SELECT a.k, NULL::text, NULL::bigint FROM add_instances(
        _instance, _generation, _name, _version, _start, _parent, _parent_generation, _delay, _on_exists, _on_deleted,
        _session, _only, _gate, _limited, _head_start, _not_before, _labels) AS a (k);
END $$;

-- Replaces the start of an instance that waits to start: see `Restart.when`. Its row is locked first. `_due` is NULL: now. A fetch
-- that has read the former message takes no instance whose `updated_at` has changed.
CREATE FUNCTION replace_start(
    _id text, _generation text, _name text, _version text, _start text, _session text, _gate text, _limited boolean,
    _due timestamptz, _within float8, _labels jsonb
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    at timestamptz;
    new_gate text;
BEGIN
    -- A statement of its own: in one that waits for the lock, PostgreSQL looks at the instance again, but not at its owner.
    PERFORM FROM instances i WHERE i.instance_id = _id FOR NO KEY UPDATE;
    -- Without a limited gate it leaves its line.
    UPDATE instances i SET gate = NULL, limited = NULL
    WHERE i.instance_id = _id AND i.generation = _generation AND i.name = _name AND i.status = 'pending' AND i.event_count = 0
      AND i.waits_since IS NOT NULL AND NOT EXISTS (
          SELECT FROM alive_workers w WHERE w.worker_id = i.owner_worker AND w.incarnation = i.owner_incarnation)
    RETURNING least(coalesce(_due, clock()), i.waits_since + _within * interval '1 s') INTO at;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    new_gate := CASE WHEN _limited OR at > clock() THEN _gate END;
    UPDATE instances i
    SET version = _version, session_id = _session, gate = new_gate, limited = _limited, starts_at = at, labels = _labels,
        updated_at = clock()
    WHERE i.instance_id = _id;
    UPDATE orchestrator_queue q
    SET payload = CASE WHEN q.id = f.id THEN _start ELSE q.payload END,
        visible_at = CASE WHEN q.id = f.id THEN at ELSE greatest(q.visible_at, at) END,
        route = CASE WHEN new_gate IS NULL THEN 'new' WHEN q.id = f.id THEN 'gate' ELSE 'gated' END
    FROM (SELECT min(o.id) AS id FROM orchestrator_queue o WHERE o.instance_id = _id) f
    WHERE q.instance_id = _id;
    RETURN true;
END $$;

-- Restarts ended instances: each goes on in its next execution, as a new generation with its start message; the history
-- of the former one stays. Returns the positions of the instances that were in the generation `_ended`, of this name, and had
-- ended; or, when a quota refuses the batch, one row that names it. `_when`, `_within`, `_cancel`: see `Restart`.
CREATE FUNCTION restart_instances(
    _instance text[], _ended text[], _generation text[], _name text[], _version text[], _start text[], _session text[],
    _gate text[] = NULL, _limited boolean[] = NULL, _head_start float8[] = NULL, _delay float8[] = NULL,
    _not_before float8[] = NULL, _when text[] = NULL, _within float8[] = NULL, _cancel text[] = NULL, _labels text[] = NULL
) RETURNS TABLE (n bigint, quota text, allowed bigint) LANGUAGE plpgsql AS $$
DECLARE
    most bigint;
    due timestamptz;
    is_done boolean;
BEGIN
    SELECT q.instance_bytes INTO most FROM quotas q;
    IF most < (SELECT max(octet_length(s.start)) FROM unnest(_start) AS s (start)) THEN
        RETURN QUERY SELECT NULL::bigint, 'instance_bytes', most;
        RETURN;
    END IF;
    FOR n IN SELECT w.k FROM unnest(_instance) WITH ORDINALITY AS w (instance_id, k) ORDER BY w.instance_id, w.k LOOP
        due := start_time(_delay[n], _not_before[n]);
        IF _when[n] = 'waiting' THEN
            is_done := replace_start(_instance[n], _ended[n], _name[n], _version[n], _start[n], _session[n], _gate[n],
                _limited[n], due, _within[n], _labels[n]::jsonb);
        ELSIF _when[n] = 'next' THEN
            UPDATE instances i
            SET next_start = json_build_object(
                'generation', coalesce(i.next_start::json ->> 'generation', _generation[n]), 'version', _version[n],
                'start', _start[n], 'session', _session[n], 'gate', _gate[n], 'limited', _limited[n],
                'head_start', _head_start[n], 'delay', _delay[n], 'not_before', _not_before[n], 'labels', _labels[n])
            WHERE i.instance_id = _instance[n] AND i.generation = _ended[n] AND i.name = _name[n]
              AND i.status IN ('pending', 'running', 'suspended');
            is_done := FOUND;
            IF is_done AND _cancel[n] IS NOT NULL THEN
                PERFORM send_messages(
                    ARRAY[_instance[n]], ARRAY[_ended[n]], ARRAY[_cancel[n]], _ends_wait => ARRAY[true]);
            END IF;
        ELSE
            is_done := NULL;
        END IF;
        IF is_done THEN
            RETURN NEXT;
        END IF;
        CONTINUE WHEN is_done IS NOT NULL;
        UPDATE instances i
        SET generation = _generation[n], version = _version[n], execution_id = i.execution_id + 1, event_count = 0,
            status = 'pending', custom_status = NULL, output = NULL, error = NULL, parent_id = NULL,
            parent_generation = NULL, on_deleted = NULL, session_id = _session[n], owner_incarnation = NULL, claims = 0,
            unknown_since = NULL, unread = 0, value_bytes = 0,
            gate = CASE WHEN _limited[n] OR due IS NOT NULL THEN _gate[n] END, limited = _limited[n], starts_at = due,
            waits_since = CASE WHEN due IS NOT NULL THEN clock() END, labels = _labels[n]::jsonb, updated_at = clock()
        WHERE i.instance_id = _instance[n] AND i.generation = _ended[n] AND i.name = _name[n]
          AND i.status IN ('completed', 'failed', 'cancelled');
        CONTINUE WHEN NOT FOUND;
        -- What was sent while the former generation ended is not for this one.
        PERFORM end_work(ARRAY[_instance[n]]);
        DELETE FROM session_watches w WHERE w.instance_id = _instance[n];
        DELETE FROM instance_values v WHERE v.instance_id = _instance[n];
        DELETE FROM orchestrator_queue q WHERE q.instance_id = _instance[n];
        INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
        SELECT i.instance_id, CASE WHEN i.gate IS NULL THEN 'new' ELSE 'gate' END, coalesce(due, clock()
            - CASE WHEN i.gate IS NULL THEN coalesce(_head_start[n], 0) ELSE 0 END * interval '1 s'), _start[n]
        FROM instances i WHERE i.instance_id = _instance[n];
        RETURN NEXT;
    END LOOP;
END $$;

-- Begins starts that have waited for the end of their instances, up to a number of them; returns how many.
-- By the index of those, whatever the planner believes of a table without statistics.
CREATE FUNCTION begin_next_starts(_most bigint) RETURNS bigint LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    this record;
    begun bigint := 0;
BEGIN
    FOR this IN
        SELECT i.instance_id, i.generation, i.name, i.next_start::json AS next FROM instances i
        WHERE i.next_start IS NOT NULL AND i.status IN ('completed', 'failed', 'cancelled')
        LIMIT _most FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        PERFORM restart_instances(
            ARRAY[this.instance_id], ARRAY[this.generation], ARRAY[this.next ->> 'generation'], ARRAY[this.name],
            ARRAY[this.next ->> 'version'], ARRAY[this.next ->> 'start'], ARRAY[this.next ->> 'session'],
            ARRAY[this.next ->> 'gate'], ARRAY[(this.next ->> 'limited')::boolean],
            ARRAY[(this.next ->> 'head_start')::float8], ARRAY[(this.next ->> 'delay')::float8],
            ARRAY[(this.next ->> 'not_before')::float8], _labels => ARRAY[this.next ->> 'labels']);
        -- Not if a quota has refused it: then the next sweep tries again.
        UPDATE instances i SET next_start = NULL
        WHERE i.instance_id = this.instance_id AND i.generation = this.next ->> 'generation';
        begun := begun + FOUND::int;
    END LOOP;
    RETURN begun;
END $$;

-- Brings `instance_sizes` up to date, for a quota of bytes.
CREATE FUNCTION measure_instances(_instance text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO instance_sizes AS s (instance_id, generation, execution_id, event_count, bytes)
    SELECT i.instance_id, i.generation, i.execution_id, i.event_count, coalesce(z.bytes, 0) + (
        SELECT coalesce(sum(octet_length(h.event)), 0) FROM history h
        WHERE h.instance_id = i.instance_id AND h.execution_id = i.execution_id
          AND h.event_id > coalesce(z.event_count, 0) AND h.event_id <= i.event_count)
    FROM (SELECT DISTINCT w.instance_id FROM unnest(_instance) AS w (instance_id) ORDER BY w.instance_id) w
    JOIN instances i ON i.instance_id = w.instance_id
    LEFT JOIN instance_sizes z
        ON z.instance_id = i.instance_id AND z.generation = i.generation AND z.execution_id = i.execution_id
    WHERE z.event_count IS DISTINCT FROM i.event_count
    ON CONFLICT (instance_id) DO UPDATE
    SET generation = excluded.generation, execution_id = excluded.execution_id, event_count = excluded.event_count,
        bytes = excluded.bytes;
END $$;

-- The bytes of a measured instance: of its events, and of its messages except timers. NULL: the limit has been lifted.
-- It is a function, so that statements plan and read none of this without a quota.
CREATE FUNCTION instance_bytes(_instance text, _generation text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT z.bytes FROM instance_sizes z WHERE z.instance_id = _instance AND z.generation = _generation) + (
        SELECT coalesce(sum(octet_length(q.payload)), 0) FROM orchestrator_queue q
        WHERE q.instance_id = _instance AND q.timer_execution IS NULL);
END $$;

-- Ends the wait of instances that wait to start, or at their gates: their messages are visible soon after this moment, in order.
CREATE FUNCTION end_start_waits(_instance text[], _moment timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    waiting text[];
BEGIN
    waiting := ARRAY (
        SELECT i.instance_id FROM instances i
        WHERE i.instance_id = ANY (_instance) AND i.status = 'pending' AND (i.gate IS NOT NULL OR i.starts_at > _moment)
        ORDER BY i.instance_id FOR NO KEY UPDATE);
    IF waiting <> '{}' THEN
        UPDATE instances i SET gate = NULL, limited = NULL, starts_at = NULL, waits_since = NULL, updated_at = clock()
        WHERE i.instance_id = ANY (waiting);
        UPDATE orchestrator_queue q SET route = 'new', visible_at = _moment + interval '1 ms'
        WHERE q.instance_id = ANY (waiting);
    END IF;
END $$;

-- Sends messages, and returns the delivery of each. With `_only`, messages in other positions are left out.
CREATE FUNCTION send_messages(
    _instance text[], _generation text[], _payload text[], _delay float8[] = NULL, _timer_execution bigint[] = NULL,
    _timer_id bigint[] = NULL, _unread_limit bigint[] = NULL, _only bigint[] = NULL, _ends_wait boolean[] = NULL
) RETURNS TABLE (n bigint, delivery text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    most quotas;
    moment timestamptz; -- of messages that end the wait of their instance: before those that it lets go
BEGIN
    SELECT * INTO most FROM quotas;
    IF true = ANY (_ends_wait) THEN
        moment := clock();
        PERFORM end_start_waits(ARRAY (
            SELECT w.instance_id
            FROM unnest(_instance, _generation, _ends_wait) AS w (instance_id, generation, ends_wait)
            JOIN instances i ON i.instance_id = w.instance_id AND (w.generation IS NULL OR i.generation = w.generation)
            WHERE w.ends_wait), moment);
    END IF;
    IF most.instance_bytes IS NOT NULL THEN
        PERFORM measure_instances(ARRAY (
            SELECT w.instance_id FROM unnest(_instance, _unread_limit) AS w (instance_id, unread_limit)
            WHERE w.unread_limit IS NOT NULL));
    END IF;
    RETURN QUERY WITH message AS MATERIALIZED (
        SELECT m.n, m.instance_id, r.route, r.starts_at,
            CASE WHEN m.unread_limit IS NOT NULL THEN i.unread + (
                SELECT count(*) FROM (
                    SELECT FROM orchestrator_queue q WHERE q.instance_id = m.instance_id AND q.timer_execution IS NULL
                    LIMIT least(m.unread_limit, most.unread_events)
                ) unread
            ) + row_number() OVER (PARTITION BY m.instance_id, m.unread_limit ORDER BY m.n)
                > least(m.unread_limit, most.unread_events)
            ELSE false END AS is_full,
            (CASE WHEN m.unread_limit IS NOT NULL AND most.instance_bytes IS NOT NULL
             THEN instance_bytes(m.instance_id, i.generation)
                + sum(octet_length(_payload[m.n])) OVER (PARTITION BY m.instance_id ORDER BY m.n) > most.instance_bytes
             END) IS TRUE AS is_over
        FROM unnest(_instance, _generation, _unread_limit) WITH ORDINALITY AS m (instance_id, generation, unread_limit, n)
        JOIN instances i ON i.instance_id = m.instance_id AND (m.generation IS NULL OR i.generation = m.generation)
        LEFT JOIN message_routes r ON r.instance_id = m.instance_id
        WHERE _only IS NULL OR m.n IN (SELECT o.n FROM unnest(_only) AS o (n))
    ), sent AS (
        INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload, timer_execution, timer_id)
        SELECT m.instance_id, m.route,
            CASE WHEN _ends_wait[m.n] THEN moment
                 ELSE greatest((SELECT clock()) + coalesce(_delay[m.n], 0) * interval '1 s', m.starts_at) END,
            _payload[m.n], _timer_execution[m.n], _timer_id[m.n]
        FROM message m WHERE m.route IS NOT NULL AND NOT m.is_full AND NOT m.is_over
        ORDER BY m.n
    )
    SELECT m.n, CASE WHEN m.route IS NULL THEN 'finished' WHEN m.is_full THEN 'full' WHEN m.is_over THEN 'over_quota'
                     ELSE 'delivered' END
    FROM message m;
END $$;

-- Sends messages as `send_messages`; some have a key. The instances of keyed messages are locked against deletion, so that a
-- deletion removes the new keys too.
CREATE FUNCTION send_keyed_messages(
    _instance text[], _generation text[], _payload text[], _delay float8[], _timer_execution bigint[], _timer_id bigint[],
    _unread_limit bigint[], _key text[], _ends_wait boolean[] = NULL
) RETURNS TABLE (n bigint, delivery text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    fresh bigint[]; -- messages with a key that their instance has not got yet
    sent bigint[];  -- all messages but those whose key is there
BEGIN
    PERFORM FROM instances i
    WHERE i.instance_id = ANY (ARRAY(
        SELECT m.instance_id FROM unnest(_instance, _key) AS m (instance_id, key) WHERE m.key IS NOT NULL))
    ORDER BY i.instance_id FOR KEY SHARE;
    WITH wanted AS MATERIALIZED (
        SELECT m.instance_id, i.generation, m.key, min(m.n) AS n
        FROM unnest(_instance, _generation, _key) WITH ORDINALITY AS m (instance_id, generation, key, n)
        JOIN instances i ON i.instance_id = m.instance_id AND (m.generation IS NULL OR i.generation = m.generation)
        WHERE m.key IS NOT NULL AND i.status NOT IN ('completed', 'failed', 'cancelled')
        GROUP BY m.instance_id, i.generation, m.key
    ), added AS (
        INSERT INTO message_keys (instance_id, generation, key, updated_at)
        SELECT w.instance_id, w.generation, w.key, clock() FROM wanted w ORDER BY w.instance_id, w.key
        ON CONFLICT (instance_id, generation, key) DO NOTHING
        RETURNING instance_id, generation, key
    )
    -- By IN where nothing is joined, here and below: it is looked up by hash. A join of two columns would compare each
    -- with each, since the planner does not know how long they are.
    SELECT coalesce(array_agg(w.n) FILTER (
        WHERE (w.instance_id, w.generation, w.key) IN (SELECT a.instance_id, a.generation, a.key FROM added a)), '{}')
    INTO fresh FROM wanted w;
    SELECT array_agg(m.n) INTO sent
    FROM unnest(_instance, _generation, _key) WITH ORDINALITY AS m (instance_id, generation, key, n)
    WHERE m.key IS NULL OR m.n IN (SELECT f.n FROM unnest(fresh) AS f (n)) OR (
        -- A scalar: one look into the index for each, whatever the planner takes the tables for.
        SELECT k.key FROM message_keys k
        WHERE k.instance_id = m.instance_id AND k.key = m.key AND k.generation = (
            SELECT i.generation FROM instances i
            WHERE i.instance_id = m.instance_id AND (m.generation IS NULL OR i.generation = m.generation))
    ) IS NULL;
    RETURN QUERY WITH message AS MATERIALIZED (
        SELECT m.n, max(m.instance_id) AS instance_id, max(m.key) AS key, max(m.delivery) AS delivery,
            m.n IN (SELECT f.n FROM unnest(fresh) AS f (n)) AS is_first,
            m.n IN (SELECT s.n FROM unnest(sent) AS s (n)) AS is_sent
        FROM (
            SELECT m.n, m.instance_id, m.key, NULL::text AS delivery
            FROM unnest(_instance, _key) WITH ORDINALITY AS m (instance_id, key, n)
            UNION ALL
            SELECT o.n, NULL, NULL, o.delivery
            FROM send_messages(
                _instance, _generation, _payload, _delay, _timer_execution, _timer_id, _unread_limit, coalesce(sent, '{}'),
                _ends_wait) o
        ) m GROUP BY m.n
    ), refused AS ( -- it may be sent again under its key
        DELETE FROM message_keys WHERE ctid = ANY (ARRAY(
            SELECT (
                SELECT k.ctid FROM message_keys k
                WHERE k.instance_id = m.instance_id AND k.key = m.key
                  AND k.generation = (SELECT i.generation FROM instances i WHERE i.instance_id = m.instance_id))
            FROM message m WHERE m.is_first AND m.delivery <> 'delivered'))
    ), answer AS (
        SELECT m.n, CASE
            WHEN m.is_sent THEN m.delivery
            -- As the first of this key, which may be in the same batch.
            ELSE coalesce(nullif(max(m.delivery) FILTER (WHERE m.is_first) OVER of_key, 'delivered'), 'repeated')
            END AS delivery
        FROM message m WINDOW of_key AS (PARTITION BY m.instance_id, m.key)
    )
    SELECT a.n, a.delivery FROM answer a WHERE a.delivery IS NOT NULL;
END $$;

-- The replies of a batch of turns, called behind their commit. Of several to one message the first counts. The key is there
-- unless it was old.
CREATE FUNCTION reply_messages(_instance text[], _generation text[], _key text[], _reply text[]) RETURNS void
LANGUAGE sql VOLATILE AS $$
    INSERT INTO message_keys AS k (instance_id, generation, key, reply, updated_at)
    SELECT r.instance_id, r.generation, r.key, r.reply, clock()
    FROM (
        SELECT DISTINCT ON (m.instance_id, m.generation, m.key) m.*
        FROM unnest(_instance, _generation, _key, _reply) WITH ORDINALITY AS m (instance_id, generation, key, reply, n)
        ORDER BY m.instance_id, m.generation, m.key, m.n
    ) r
    ON CONFLICT (instance_id, generation, key) DO UPDATE SET reply = excluded.reply, updated_at = excluded.updated_at
    WHERE k.reply IS NULL
$$;

-- The values that a batch of turns, or a reset, has set, called behind its commit. _cleared: instances that lose all of
-- theirs before. A key comes once for each instance; its value is NULL: it is removed.
CREATE FUNCTION write_values(_cleared text[], _instance text[], _key text[], _value text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM instance_values v WHERE v.instance_id = ANY (_cleared);
    DELETE FROM instance_values v USING unnest(_instance, _key, _value) AS w (instance_id, key, value)
    WHERE v.instance_id = w.instance_id AND v.key = w.key AND w.value IS NULL;
    INSERT INTO instance_values AS v (instance_id, key, value, updated_at)
    SELECT w.instance_id, w.key, w.value, (SELECT clock())
    FROM unnest(_instance, _key, _value) AS w (instance_id, key, value) WHERE w.value IS NOT NULL
    ORDER BY w.instance_id, w.key
    ON CONFLICT (instance_id, key) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at;
    UPDATE instances i
    SET value_bytes = (
        SELECT coalesce(sum(octet_length(v.key) + octet_length(v.value)), 0) FROM instance_values v
        WHERE v.instance_id = i.instance_id)
    WHERE i.instance_id = ANY (_cleared || _instance);
END $$;

-- Removes messages that turns have consumed. Called behind a commit: an argument of `commit_turns` for them brings all that
-- a turn may remove, and most turns that consume messages remove nothing else.
CREATE FUNCTION consume_messages(_instance text[], _id bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- An id alone does not say whose message it is: after a failover that lost the last commits it may be another's.
    DELETE FROM orchestrator_queue o USING unnest(_instance, _id) AS c (instance_id, id)
    WHERE o.id = c.id AND o.instance_id = c.instance_id;
END $$;

-- Deletes instances, if asked to with their trees of children, and notifies the parents that stay. A tree is deleted whole or not
-- at all: without force, only if all of it has ended. Returns the instances that were found, and whether each was deleted.
--
-- A turn that is being committed may add a child while we wait for its parent: the tree is read again until it is locked
-- as a whole. Rows are locked in the order that all verbs keep, but for children found late; should that deadlock, the
-- deletion is repeated.
CREATE FUNCTION delete_instances(_instance text[], _force boolean, _tree boolean)
RETURNS TABLE (root text, doomed boolean) LANGUAGE plpgsql AS $$
DECLARE
    roots text[]; members text[]; -- each member of a tree with the instance that was asked for
    before text[] := '{}';
    gone text[];                  -- deleted instances
BEGIN
    LOOP
        WITH RECURSIVE tree (root, instance_id, generation) AS (
            SELECT i.instance_id, i.instance_id, i.generation FROM instances i WHERE i.instance_id = ANY (_instance)
            UNION
            SELECT t.root, c.instance_id, c.generation FROM tree t JOIN instances c ON c.parent_id = t.instance_id
            WHERE _tree AND (c.parent_generation IS NULL OR c.parent_generation = t.generation)
        )
        SELECT array_agg(t.root ORDER BY t.root, t.instance_id), array_agg(t.instance_id ORDER BY t.root, t.instance_id)
        INTO roots, members FROM tree t;
        EXIT WHEN members IS NULL OR members = before;
        PERFORM FROM instances i WHERE i.instance_id = ANY (members) ORDER BY i.instance_id FOR UPDATE;
        before := members;
    END LOOP;
    RETURN QUERY
        SELECT m.root, _force OR bool_and(i.status IN ('completed', 'failed', 'cancelled'))
        FROM unnest(roots, members) AS m (root, instance_id) JOIN instances i USING (instance_id)
        GROUP BY m.root;
    gone := ARRAY (
        SELECT DISTINCT m.instance_id FROM unnest(roots, members) AS m (root, instance_id)
        WHERE _force OR NOT EXISTS (
            SELECT FROM unnest(roots, members) AS o (root, instance_id) JOIN instances i USING (instance_id)
            WHERE o.root = m.root AND i.status NOT IN ('completed', 'failed', 'cancelled')));
    IF gone = '{}' THEN
        RETURN;
    END IF;
    INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload)
    SELECT r.instance_id, r.route, clock(), i.on_deleted
    FROM instances i JOIN message_routes r ON r.instance_id = i.parent_id AND r.generation = i.parent_generation
    WHERE i.instance_id = ANY (gone) AND i.status NOT IN ('completed', 'failed', 'cancelled')
      AND i.on_deleted IS NOT NULL AND NOT i.parent_id = ANY (gone);
    DELETE FROM parked_items WHERE instance_id = ANY (gone); -- first: an append that queues one meanwhile has committed by then
    PERFORM end_work(gone);
    DELETE FROM session_watches WHERE instance_id = ANY (gone);
    DELETE FROM orchestrator_queue WHERE instance_id = ANY (gone);
    DELETE FROM history WHERE instance_id = ANY (gone);
    DELETE FROM suspensions WHERE instance_id = ANY (gone);
    DELETE FROM ended_executions WHERE instance_id = ANY (gone);
    DELETE FROM instance_sizes WHERE instance_id = ANY (gone);
    DELETE FROM message_keys WHERE instance_id = ANY (gone);
    DELETE FROM instance_values WHERE instance_id = ANY (gone);
    DELETE FROM failures WHERE instance_id = ANY (gone);
    DELETE FROM instances_by_status s USING instances i
    WHERE i.instance_id = ANY (gone)
      AND s.status = i.status AND s.created_at = i.created_at AND s.instance_id = i.instance_id;
    DELETE FROM instances WHERE instance_id = ANY (gone);
END $$;

-- Opens an instance again at an earlier point of its history: see `Reset` in affinity/provider/contract.
CREATE FUNCTION reset_instance(
    _instance text, _generation text, _execution bigint, _events bigint, _keep bigint, _event text[], _custom_status text,
    _message_instance text[], _message_generation text[], _message text[], _message_delay float8[], _message_timer bigint[],
    _item_activity bigint[], _item_name text[], _item_session text[], _item_payload text[],
    _watch_session text[], _watch text[], _item_order text[],
    _item_gate text[] = NULL, _item_limited boolean[] = NULL, _item_head_start float8[] = NULL,
    _cleared text[] = NULL, _value_of text[] = NULL, _value_key text[] = NULL, _value text[] = NULL, -- of `write_values`
    _labels text = NULL
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    numbers bigint[]; blocked boolean[];
BEGIN
    PERFORM FROM instances WHERE instance_id = _instance FOR NO KEY UPDATE;
    PERFORM lock_order(_item_order);
    UPDATE instances i
    SET execution_id = _execution + 1, event_count = _keep + cardinality(_event), status = 'running', output = NULL,
        error = NULL, custom_status = _custom_status, owner_incarnation = NULL, claims = 0,
        unknown_since = NULL, unread = 0, gate = NULL, labels = _labels::jsonb, updated_at = clock(),
        limited = CASE WHEN i.status IN ('running', 'suspended') THEN i.limited END -- one that has not ended keeps its slots
    WHERE i.instance_id = _instance AND i.generation = _generation AND i.execution_id = _execution AND i.event_count = _events;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM write_values(_cleared, _value_of, _value_key, _value);
    PERFORM end_work(ARRAY[_instance]);
    INSERT INTO history (instance_id, execution_id, event_id, event, recorded_at, recorded_events, recorded_by, run_by,
        attempt, queued_for)
    SELECT h.instance_id, _execution + 1, h.event_id, h.event, h.recorded_at, h.recorded_events, h.recorded_by, h.run_by,
        h.attempt, h.queued_for
    FROM history h WHERE h.instance_id = _instance AND h.execution_id = _execution AND h.event_id <= _keep
    UNION ALL
    SELECT _instance, _execution + 1, _keep + e.k, e.event, CASE WHEN e.k = 1 THEN clock() END,
        CASE WHEN e.k = 1 THEN cardinality(_event) END, NULL, NULL, NULL, NULL
    FROM unnest(_event) WITH ORDINALITY AS e (event, k);
    -- Before all that waits, also by an earlier reset, but for timers with a delay: one that still waits keeps its time.
    INSERT INTO orchestrator_queue (instance_id, route, visible_at, payload, timer_execution, timer_id)
    SELECT m.instance_id, r.route,
        CASE WHEN o.visible_at IS NOT NULL THEN o.visible_at
             WHEN _message_delay[m.k] > 0 THEN (SELECT clock()) + _message_delay[m.k] * interval '1 s'
             WHEN m.instance_id = _instance THEN least(to_timestamp(0), (
                 SELECT min(w.visible_at) - interval '1 s' FROM orchestrator_queue w WHERE w.instance_id = _instance))
             ELSE (SELECT clock()) END,
        _message[m.k], CASE WHEN _message_timer[m.k] IS NOT NULL THEN _execution + 1 END, _message_timer[m.k]
    FROM unnest(_message_instance) WITH ORDINALITY AS m (instance_id, k) JOIN message_routes r USING (instance_id)
    LEFT JOIN orchestrator_queue o
        ON o.instance_id = _instance AND o.timer_execution = _execution AND o.timer_id = _message_timer[m.k]
    WHERE _message_generation[m.k] IS NULL OR r.generation = _message_generation[m.k]
    ORDER BY m.k;
    DELETE FROM orchestrator_queue WHERE instance_id = _instance AND timer_execution = _execution;
    UPDATE orchestrator_queue SET route = 'new' WHERE instance_id = _instance AND route <> 'new';
    SELECT p.numbers, p.blocked INTO numbers, blocked FROM places_in_order(_item_order) p;
    INSERT INTO worker_queue (instance_id, execution_id, activity_id, name, session_id, route, visible_at, payload,
        enqueued_at, order_session, order_number, gate, limited, gate_session)
    SELECT _instance, _execution + 1, _item_activity[w.k], _item_name[w.k],
        CASE WHEN blocked[w.k] OR _item_limited[w.k] THEN NULL ELSE w.session_id END,
        CASE WHEN blocked[w.k] THEN 'blocked' WHEN _item_limited[w.k] THEN 'gate' WHEN w.session_id IS NULL THEN 'free'
             ELSE coalesce(s.route, 'new') END,
        (SELECT clock()) + w.k * interval '1 us' - CASE WHEN _item_limited[w.k] THEN interval '0'
            ELSE coalesce(_item_head_start[w.k], 0) * interval '1 s' END,
        _item_payload[w.k], clock(), _item_order[w.k], numbers[w.k], _item_gate[w.k], _item_limited[w.k],
        CASE WHEN _item_limited[w.k] THEN w.session_id END
    FROM unnest(_item_session) WITH ORDINALITY AS w (session_id, k)
    LEFT JOIN session_routes s ON s.session_id = w.session_id;
    INSERT INTO session_watches (session_id, instance_id, payload)
    SELECT w.session_id, _instance, _watch[w.k] FROM unnest(_watch_session) WITH ORDINALITY AS w (session_id, k)
    ON CONFLICT (session_id, instance_id) DO UPDATE SET payload = excluded.payload;
    UPDATE suspensions SET resumed_at = clock(), tried = '{}', unchecked = true WHERE instance_id = _instance;
    RETURN true;
END $$;

-- A parked item is removed with its execution: before the statement that ends an instance empties its queue, and an append that
-- queues it meanwhile has committed by then.
CREATE FUNCTION record_ended_execution() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO ended_executions AS e (instance_id, execution_id, is_last, ended_at)
    VALUES (NEW.instance_id, OLD.execution_id, NEW.execution_id = OLD.execution_id, NEW.updated_at)
    ON CONFLICT (instance_id, execution_id) DO UPDATE SET is_last = excluded.is_last, ended_at = excluded.ended_at;
    DELETE FROM parked_items WHERE instance_id = NEW.instance_id AND parked;
    RETURN NULL;
END $$;

-- A trigger, so that each statement that changes a status is recorded. With the rights of the role that migrated: a role that
-- only ends instances needs none to this table.
CREATE FUNCTION move_status() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    DELETE FROM instances_by_status s
    WHERE s.status = OLD.status AND s.created_at = OLD.created_at AND s.instance_id = OLD.instance_id;
    IF NEW.status IN ('suspended', 'failed', 'cancelled') THEN
        INSERT INTO instances_by_status (status, created_at, instance_id)
        VALUES (NEW.status, NEW.created_at, NEW.instance_id) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$;

-- Keeps the rows in `instance_labels`, with the rights of the role that migrated, as `move_status` does.
CREATE FUNCTION phase_of(_status text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN _status IN ('pending', 'running') THEN 'open' ELSE _status END
$$;
CREATE FUNCTION move_labels() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.labels IS NOT NULL THEN
        DELETE FROM instance_labels l USING jsonb_each_text(OLD.labels) AS o (key, value)
        WHERE l.key = o.key AND l.value = o.value AND l.phase = phase_of(OLD.status) AND l.created_at = OLD.created_at
          AND l.instance_id = OLD.instance_id;
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.labels IS NOT NULL THEN
        INSERT INTO instance_labels (key, value, phase, created_at, instance_id)
        SELECT n.key, n.value, phase_of(NEW.status), NEW.created_at, NEW.instance_id FROM jsonb_each_text(NEW.labels) AS n (key, value);
    END IF;
    RETURN NULL;
END $$;

-- Sets the labels of instances, called behind the commit of their turns.
CREATE FUNCTION label_instances(_instance text[], _labels text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE instances i SET labels = nullif(w.labels::jsonb, '{}')
    FROM unnest(_instance, _labels) AS w (instance_id, labels) WHERE i.instance_id = w.instance_id;
END $$;

-- Deletions have parts of their own: the part of a deletion is locked last, the part of a creation before work items and
-- sessions.
CREATE FUNCTION count_instances() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
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
CREATE FUNCTION set_quotas(_instances bigint, _unread_events bigint, _instance_bytes bigint) RETURNS void
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

CREATE TRIGGER execution_ended AFTER UPDATE OF status, execution_id ON instances
FOR EACH ROW WHEN (
    NEW.execution_id <> OLD.execution_id
    OR NEW.status IN ('completed', 'failed', 'cancelled') AND OLD.status NOT IN ('completed', 'failed', 'cancelled'))
EXECUTE FUNCTION record_ended_execution();
CREATE TRIGGER status_changed AFTER UPDATE OF status ON instances FOR EACH ROW WHEN (
    NEW.status <> OLD.status
    AND (NEW.status IN ('suspended', 'failed', 'cancelled') OR OLD.status IN ('suspended', 'failed', 'cancelled')))
EXECUTE FUNCTION move_status();
CREATE TRIGGER labelled AFTER INSERT ON instances FOR EACH ROW WHEN (NEW.labels IS NOT NULL) EXECUTE FUNCTION move_labels();
CREATE TRIGGER labels_changed AFTER UPDATE OF status, labels ON instances FOR EACH ROW WHEN (
    (OLD.labels IS NOT NULL OR NEW.labels IS NOT NULL)
    AND (NEW.labels IS DISTINCT FROM OLD.labels OR phase_of(NEW.status) <> phase_of(OLD.status)))
EXECUTE FUNCTION move_labels();
CREATE TRIGGER unlabelled AFTER DELETE ON instances FOR EACH ROW WHEN (OLD.labels IS NOT NULL) EXECUTE FUNCTION move_labels();
