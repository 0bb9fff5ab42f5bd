-- came_items: items that have come to their gates, or have come back
SELECT json_group_array(json_array(id, gate, limited, visible_at, instance_id, session_id)) FROM (
    SELECT id, gate, limited, visible_at, instance_id, session_id FROM worker_queue
    WHERE route = 'gate' AND visible_at <= :now ORDER BY visible_at, id LIMIT :most
);

-- came_starts: instances whose start messages have come to their gates
SELECT json_group_array(json_array(instance_id, gate, limited, visible_at)) FROM (
    SELECT i.instance_id, i.gate, i.limited, q.visible_at FROM orchestrator_queue AS q CROSS JOIN instances AS i USING (instance_id)
    WHERE q.route = 'gate' AND q.visible_at <= :now ORDER BY q.visible_at, q.id LIMIT :most
);

-- add_work: to lines
INSERT INTO limited_work (line_id, item_id, instance_id, since)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(:rows);

-- count_in_lines: work that has come; a line that begins to wait has no claim to what was served before
UPDATE limit_lines SET
    virtual_next = iif(waiting > 0, virtual_next, max(
        virtual_next, coalesce((
            SELECT d.virtual_times ->> ('$."' || limit_lines.priority || '"') FROM limit_keys AS d WHERE d.key_id = limit_lines.domain
        ), 0.0),
        coalesce((
            SELECT max(s.virtual_next) FROM limit_lines AS s
            WHERE s.share = limit_lines.share AND s.domain = limit_lines.domain AND s.priority = limit_lines.priority
              AND s.waiting > 0), 0.0))),
    waiting = waiting + (j.value ->> 1), oldest = min(coalesce(oldest, j.value ->> 2), j.value ->> 2), used_at = :now
FROM json_each(:rows) AS j WHERE limit_lines.line_id = j.value ->> 0;

-- count_in_keys: work that has come
UPDATE limit_keys SET waiting = waiting + (j.value ->> 1), is_pending = max(is_pending, j.value ->> 2)
FROM json_each(:rows) AS j WHERE limit_keys.key_id = j.value ->> 0;

-- opened: keys that may have room now
SELECT json_group_array(key_id) FROM (SELECT key_id FROM limit_keys WHERE opens_at <= :now ORDER BY opens_at LIMIT :most);

-- pending: domains to serve
SELECT json_group_array(key_id) FROM (SELECT key_id FROM limit_keys WHERE is_pending ORDER BY last_admitted LIMIT :most);

-- sessions: of items
SELECT json_group_array(json_array(id, gate_session)) FROM worker_queue
WHERE id IN (SELECT value FROM json_each(:items)) AND gate_session IS NOT NULL;

-- send_items: to their routes; now they wait for a worker
UPDATE worker_queue SET
    route = j.value ->> 1, session_id = j.value ->> 2, visible_at = (j.value ->> 3) - coalesce(passed_over, 0.0),
    waits_since = iif(limited, :now - coalesce(passed_over, 0.0), waits_since),
    attend_at = iif(limited, :now - coalesce(passed_over, 0.0) + min(
        coalesce(takeover_after, fail_after), coalesce(fail_after, takeover_after)), attend_at)
FROM json_each(:rows) AS j WHERE worker_queue.id = j.value ->> 0;

-- open_instances: they wait no longer
UPDATE instances SET gate = NULL WHERE instance_id IN (SELECT value FROM json_each(:rows));

-- send_messages: of instances that may start, all by the same time earlier
UPDATE orchestrator_queue SET
    route = 'new', visible_at = iif(visible_at <= :now, visible_at - (j.value ->> 1), visible_at)
FROM json_each(:rows) AS j WHERE orchestrator_queue.instance_id = j.value ->> 0;

-- admit_work: it has its slots
UPDATE limited_work SET admitted_at = :now WHERE work_id IN (SELECT value FROM json_each(:rows));

-- wait_items: items that have come, and have no slots
UPDATE worker_queue SET route = 'gated' WHERE id IN (SELECT value FROM json_each(:rows)) AND route = 'gate';

-- wait_starts: start messages that have come, of instances that have no slots
UPDATE orchestrator_queue SET route = 'gated' WHERE instance_id IN (SELECT value FROM json_each(:rows)) AND route = 'gate';

-- waits: whether work waits
SELECT EXISTS (SELECT 1 FROM limit_keys WHERE waiting > 0);

-- next_due: when work may be admitted next
SELECT min(at) FROM (
    SELECT :now AS at WHERE EXISTS (SELECT 1 FROM limit_keys WHERE is_pending)
    UNION ALL
    SELECT min(opens_at) FROM limit_keys WHERE opens_at IS NOT NULL
    UNION ALL
    -- Not what no worker takes, unless it fails at last, if that is not wanted.
    SELECT min(visible_at) FROM worker_queue
    WHERE route = 'gate' AND (:all OR passed_over IS NULL OR fail_after IS NOT NULL)
    UNION ALL
    SELECT min(visible_at) FROM orchestrator_queue WHERE route = 'gate'
);
