-- parent_birth: of the parent as it was when it created the instance. on_deleted: sent to that parent when the instance is
-- deleted before it has ended. unread: messages that its turns have consumed and its code has not read.
ALTER TABLE instances
    ADD COLUMN parent_birth text COLLATE "C",
    ADD COLUMN on_deleted text,
    ADD COLUMN unread integer NOT NULL DEFAULT 0;

-- Removes the work items of instances and ends their holds: locks of sessions are cut back to the latest hold that is left.
CREATE FUNCTION end_work_1(_instance text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    ended text[]; locks float8[]; -- sessions whose holds end, and the length of their locks without one
BEGIN
    PERFORM FROM worker_queue q WHERE q.instance_id = ANY (_instance)
    ORDER BY q.instance_id, q.execution_id, q.activity_id FOR UPDATE;
    DELETE FROM worker_queue WHERE instance_id = ANY (_instance);
    SELECT array_agg(h.session_id), array_agg(h.session_lock) INTO ended, locks
    FROM (
        SELECT session_id, max(session_lock) AS session_lock FROM session_holds WHERE instance_id = ANY (_instance)
        GROUP BY session_id) h;
    IF ended IS NOT NULL THEN
        PERFORM FROM sessions s WHERE s.session_id = ANY (ended) ORDER BY s.session_id FOR NO KEY UPDATE;
        DELETE FROM session_holds WHERE instance_id = ANY (_instance);
        UPDATE sessions s
        SET locked_until = least(
            s.locked_until, greatest(clock() + locks[e.k] * interval '1 s', latest_hold(s.session_id)))
        FROM unnest(ended) WITH ORDINALITY AS e (session_id, k) WHERE s.session_id = e.session_id;
    END IF;
END $$;

-- Deletes instances, each with its tree of children if asked to, and tells the parents that stay. All of a tree goes, or
-- nothing of it: what has not ended goes only by force. Returns the instances that there are, and whether they go.
--
-- A turn that is being committed may add a child while we wait for its parent: the tree is read again until it is locked
-- as a whole. Rows are locked in the order that all verbs keep, but for children found late; should that deadlock, the
-- deletion is repeated.
CREATE FUNCTION delete_instances_1(_instance text[], _force boolean, _tree boolean)
RETURNS TABLE (root text, doomed boolean) LANGUAGE plpgsql AS $$
DECLARE
    roots text[]; members text[]; -- each member of a tree with the instance that was asked for
    before text[] := '{}';
    gone text[];                  -- what is deleted
BEGIN
    LOOP
        WITH RECURSIVE tree (root, instance_id, birth) AS (
            SELECT i.instance_id, i.instance_id, i.birth FROM instances i WHERE i.instance_id = ANY (_instance)
            UNION
            SELECT t.root, c.instance_id, c.birth FROM tree t JOIN instances c ON c.parent_id = t.instance_id
            WHERE _tree AND (c.parent_birth IS NULL OR c.parent_birth = t.birth)
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
    FROM instances i JOIN message_routes r ON r.instance_id = i.parent_id AND r.birth = i.parent_birth
    WHERE i.instance_id = ANY (gone) AND i.status NOT IN ('completed', 'failed', 'cancelled')
      AND i.on_deleted IS NOT NULL AND NOT i.parent_id = ANY (gone);
    PERFORM end_work_1(gone);
    DELETE FROM session_watches WHERE instance_id = ANY (gone);
    DELETE FROM orchestrator_queue WHERE instance_id = ANY (gone);
    DELETE FROM history WHERE instance_id = ANY (gone);
    DELETE FROM suspensions WHERE instance_id = ANY (gone);
    DELETE FROM instances WHERE instance_id = ANY (gone);
END $$;
