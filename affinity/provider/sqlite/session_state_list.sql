-- list_states: one page of records, newest first; or all of some sessions'; or how many there are
-- Only the parts that a filter needs are run: each stands between `-- [name` and `-- name]`. One named `by_…` is the source,
-- either some sessions, which are sorted then, or an index that has the order of a listing.
-- [rows
SELECT p.session_id, p.schema_version, p.kind, p.name, p.parent, p.labels, p.message_count, p.participants, p.version,
       p.generation, p.epoch, p.size, p.created_at, p.updated_at, :now - p.updated_at, (
    SELECT s.worker_id FROM sessions AS s
    CROSS JOIN workers AS w ON w.worker_id = s.worker_id AND w.incarnation = s.incarnation
    WHERE s.session_id = p.session_id AND s.locked_until > :now AND w.locked_until > :now
)
FROM (
    SELECT r.session_id, r.schema_version, r.kind, r.name, r.parent, r.labels, r.message_count, r.participants,
           r.version, r.generation, r.epoch, r.created_at, r.updated_at, length(r.state) AS size
-- rows]
-- [number
SELECT count(*) FROM (
    SELECT 1
-- number]
    FROM
    -- [by_id
    json_each(:session_ids) AS j CROSS JOIN
    -- by_id]
    session_states AS r
    -- [by_parent
    INDEXED BY session_states_by_parent
    -- by_parent]
    -- [by_name
    INDEXED BY session_states_by_name
    -- by_name]
    -- [by_kind
    INDEXED BY session_states_by_kind
    -- by_kind]
    -- [by_schema_version
    INDEXED BY session_states_by_schema
    -- by_schema_version]
    -- [by_age
    INDEXED BY session_states_by_age
    -- by_age]
    WHERE true
      -- [by_id
      AND r.session_id = j.value
      -- by_id]
      -- [parent
      AND r.parent = :parent
      -- parent]
      -- [name
      AND r.name = :name
      -- name]
      -- [kind
      AND r.kind = :kind
      -- kind]
      -- [schema_version
      AND r.schema_version = :schema_version
      -- schema_version]
      -- [prefix
      AND r.session_id >= :prefix AND r.session_id < :prefix_end
      -- prefix]
      -- [created_after
      AND r.created_at > :created_after
      -- created_after]
      -- [since
      AND r.updated_at > :since
      -- since]
      -- [until
      AND r.updated_at <= :until
      -- until]
      -- [after
      AND (r.updated_at, r.session_id) < (:after, :after_id)
      -- after]
      -- [labels
      AND NOT EXISTS (
          SELECT 1 FROM json_each(:labels) AS j
          WHERE NOT EXISTS (
              SELECT 1 FROM session_labels AS l
              WHERE l.key = j.value ->> 0 AND l.value = j.value ->> 1 AND l.session_id = r.session_id
          )
      )
      -- labels]
      -- [holder
      AND EXISTS (
          SELECT 1 FROM sessions AS s
          CROSS JOIN workers AS w ON w.worker_id = s.worker_id AND w.incarnation = s.incarnation
          WHERE s.session_id = r.session_id AND s.worker_id = :holder
            AND s.locked_until > :now AND w.locked_until > :now
      )
      -- holder]
      -- [participant
      AND EXISTS (
          SELECT 1 FROM session_participants AS t WHERE t.participant = :participant AND t.session_id = r.session_id
      )
      -- participant]
      -- [orphaned
      AND r.parent IS NOT NULL AND NOT EXISTS (SELECT 1 FROM session_states AS h WHERE h.session_id = r.parent)
      -- orphaned]
      -- [heads
      AND (r.parent IS NULL OR NOT EXISTS (SELECT 1 FROM session_states AS h WHERE h.session_id = r.parent))
      -- heads]
    -- [limit
    ORDER BY r.updated_at DESC, r.session_id DESC
    LIMIT :limit
    -- limit]
) AS p;
