-- Keys of messages, so that an instance gets one message of each, and the replies to these messages. They are removed with
-- their instance, or when they are old (`prune_histories`).
CREATE TABLE message_keys (
    instance_id text COLLATE "C" NOT NULL,
    birth text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    reply text,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (instance_id, birth, key)
) WITH (fillfactor = 80);
CREATE INDEX message_keys_age ON message_keys (updated_at);

-- Sends messages as `send_messages_1`, of which some have a key. The instances of these are locked against deletion, so
-- that a deletion removes the new keys too.
CREATE FUNCTION send_keyed_messages_1(
    _instance text[], _birth text[], _payload text[], _delay float8[], _timer_execution bigint[], _timer_id bigint[],
    _unread_limit bigint[], _key text[]
) RETURNS TABLE (n bigint, delivery text) LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    fresh bigint[]; -- messages with a key that their instance has not got yet
    sent bigint[];  -- all but those whose key is there
    instances_ text[]; births text[]; payloads text[]; delays float8[];
    timer_executions bigint[]; timer_ids bigint[]; unread_limits bigint[];
BEGIN
    PERFORM FROM instances i
    WHERE i.instance_id = ANY (ARRAY(
        SELECT m.instance_id FROM unnest(_instance, _key) AS m (instance_id, key) WHERE m.key IS NOT NULL))
    ORDER BY i.instance_id FOR KEY SHARE;
    WITH wanted AS MATERIALIZED (
        SELECT m.instance_id, i.birth, m.key, min(m.n) AS n
        FROM unnest(_instance, _birth, _key) WITH ORDINALITY AS m (instance_id, birth, key, n)
        JOIN instances i ON i.instance_id = m.instance_id AND (m.birth IS NULL OR i.birth = m.birth)
        WHERE m.key IS NOT NULL AND i.status NOT IN ('completed', 'failed', 'cancelled')
        GROUP BY m.instance_id, i.birth, m.key
    ), added AS (
        INSERT INTO message_keys (instance_id, birth, key, updated_at)
        SELECT w.instance_id, w.birth, w.key, clock() FROM wanted w ORDER BY w.instance_id, w.key
        ON CONFLICT (instance_id, birth, key) DO NOTHING
        RETURNING instance_id, birth, key
    )
    -- By IN where nothing is joined, here and below: it is looked up by hash. A join of two columns would compare each
    -- with each, since nobody knows how long they are.
    SELECT coalesce(array_agg(w.n) FILTER (
        WHERE (w.instance_id, w.birth, w.key) IN (SELECT a.instance_id, a.birth, a.key FROM added a)), '{}')
    INTO fresh FROM wanted w;
    -- What is sent, as columns: element by element, a look at a column of texts reads all before it.
    SELECT array_agg(m.n ORDER BY m.n), array_agg(m.instance_id ORDER BY m.n), array_agg(m.birth ORDER BY m.n),
        array_agg(m.payload ORDER BY m.n), array_agg(m.delay ORDER BY m.n),
        array_agg(m.timer_execution ORDER BY m.n), array_agg(m.timer_id ORDER BY m.n),
        array_agg(m.unread_limit ORDER BY m.n)
    INTO sent, instances_, births, payloads, delays, timer_executions, timer_ids, unread_limits
    FROM unnest(_instance, _birth, _payload, _delay, _timer_execution, _timer_id, _unread_limit, _key)
         WITH ORDINALITY AS m (instance_id, birth, payload, delay, timer_execution, timer_id, unread_limit, key, n)
    WHERE m.key IS NULL OR m.n IN (SELECT f.n FROM unnest(fresh) AS f (n)) OR (
        -- A scalar: one look into the index for each, whatever the planner takes the tables for.
        SELECT k.key FROM message_keys k
        WHERE k.instance_id = m.instance_id AND k.key = m.key AND k.birth = (
            SELECT i.birth FROM instances i
            WHERE i.instance_id = m.instance_id AND (m.birth IS NULL OR i.birth = m.birth))
    ) IS NULL;
    RETURN QUERY WITH message AS MATERIALIZED (
        SELECT m.n, max(m.instance_id) AS instance_id, max(m.key) AS key, max(m.delivery) AS delivery,
            m.n IN (SELECT f.n FROM unnest(fresh) AS f (n)) AS is_first,
            m.n IN (SELECT s.n FROM unnest(sent) AS s (n)) AS is_sent
        FROM (
            SELECT m.n, m.instance_id, m.key, NULL::text AS delivery
            FROM unnest(_instance, _key) WITH ORDINALITY AS m (instance_id, key, n)
            UNION ALL
            SELECT sent[o.n], NULL, NULL, o.delivery
            FROM send_messages_1(
                instances_, births, payloads, delays, timer_executions, timer_ids, unread_limits) o
        ) m GROUP BY m.n
    ), refused AS ( -- it may be sent again under its key
        DELETE FROM message_keys WHERE ctid = ANY (ARRAY(
            SELECT (
                SELECT k.ctid FROM message_keys k
                WHERE k.instance_id = m.instance_id AND k.key = m.key
                  AND k.birth = (SELECT i.birth FROM instances i WHERE i.instance_id = m.instance_id))
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
CREATE FUNCTION reply_messages_1(_instance text[], _birth text[], _key text[], _reply text[]) RETURNS void
LANGUAGE sql VOLATILE AS $$
    INSERT INTO message_keys AS k (instance_id, birth, key, reply, updated_at)
    SELECT r.instance_id, r.birth, r.key, r.reply, clock()
    FROM (
        SELECT DISTINCT ON (m.instance_id, m.birth, m.key) m.*
        FROM unnest(_instance, _birth, _key, _reply) WITH ORDINALITY AS m (instance_id, birth, key, reply, n)
        ORDER BY m.instance_id, m.birth, m.key, m.n
    ) r
    ON CONFLICT (instance_id, birth, key) DO UPDATE SET reply = excluded.reply, updated_at = excluded.updated_at
    WHERE k.reply IS NULL
$$;

CREATE OR REPLACE FUNCTION forget_ended_executions() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    DELETE FROM ended_executions WHERE instance_id = OLD.instance_id;
    DELETE FROM instance_sizes WHERE instance_id = OLD.instance_id;
    DELETE FROM message_keys WHERE instance_id = OLD.instance_id;
    RETURN NULL;
END $$;

DO $do$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY[
        'send_keyed_messages_1(text[], text[], text[], float8[], bigint[], bigint[], bigint[], text[])',
        'forget_ended_executions()']
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', name, current_schema);
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', name);
    END LOOP;
END $do$;
