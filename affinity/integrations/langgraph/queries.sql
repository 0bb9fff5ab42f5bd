-- claim: the right of a run to write, if it wrote last, or nobody has written since it read; no row: it has no such right
INSERT INTO affinity_langgraph_threads (thread_id, checkpoint_ns, writes, writer)
SELECT :thread, :ns, 1, :writer WHERE :read = 0 OR EXISTS (
    SELECT 1 FROM affinity_langgraph_threads WHERE thread_id = :thread AND checkpoint_ns = :ns
)
ON CONFLICT (thread_id, checkpoint_ns) DO UPDATE
SET writes = affinity_langgraph_threads.writes + 1, writer = excluded.writer
WHERE affinity_langgraph_threads.writer = excluded.writer OR affinity_langgraph_threads.writes = :read
RETURNING 1;

-- lock: the row of a namespace, until the transaction ends
INSERT INTO affinity_langgraph_threads (thread_id, checkpoint_ns, writes, writer) VALUES (:thread, :ns, 0, '')
ON CONFLICT (thread_id, checkpoint_ns) DO UPDATE SET writes = affinity_langgraph_threads.writes
RETURNING writer;

-- take: write without the token of a run
UPDATE affinity_langgraph_threads SET writes = writes + 1, writer = :writer
WHERE thread_id = :thread AND checkpoint_ns = :ns;

-- writes_so_far: how often a namespace was written
SELECT writes FROM affinity_langgraph_threads WHERE thread_id = :thread AND checkpoint_ns = :ns;

-- put: a checkpoint, the same one again too; no row: its parent is gone
INSERT INTO affinity_langgraph_checkpoints (
    thread_id, checkpoint_ns, checkpoint_id, parent_id, run_id, checkpoint_type, checkpoint, metadata_type, metadata
)
SELECT
    :thread, :ns, :checkpoint, CAST(:parent AS text), CAST(:run AS text), :value_type, :value, :metadata_type, :metadata
WHERE CAST(:needed AS text) IS NULL OR EXISTS (
    SELECT 1 FROM affinity_langgraph_checkpoints
    WHERE thread_id = :thread AND checkpoint_ns = :ns AND checkpoint_id = :needed
)
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO UPDATE SET
    parent_id = excluded.parent_id, run_id = excluded.run_id,
    checkpoint_type = excluded.checkpoint_type, checkpoint = excluded.checkpoint,
    metadata_type = excluded.metadata_type, metadata = excluded.metadata
RETURNING 1;

-- write: PostgreSQL alone: what runs write, to each of many namespaces at most one checkpoint; rows: what is written
-- What is looked up as of the beginning is looked up again in the rows that are locked. So nothing that another
-- transaction has deleted meanwhile is written anew.
WITH given AS MATERIALIZED (
    SELECT given.* FROM (SELECT set_config('lock_timeout', :patience, true)) AS patience, json_to_recordset(:places) AS given (
        thread text, ns text, writer text, read bigint, checkpoint text, parent text, run text,
        value_type text, value_at int, value_size int, metadata_type text, metadata_at int, metadata_size int
    )
    ORDER BY given.thread, given.ns
), fit AS MATERIALIZED (
    SELECT given.*, EXISTS (
        SELECT FROM affinity_langgraph_threads t WHERE t.thread_id = given.thread AND t.checkpoint_ns = given.ns
    ) AS is_there
    FROM given
    WHERE parent IS NULL OR EXISTS (
        SELECT FROM affinity_langgraph_checkpoints c
        WHERE c.thread_id = given.thread AND c.checkpoint_ns = given.ns AND c.checkpoint_id = given.parent
    )
), updated AS (
    UPDATE affinity_langgraph_threads t SET writes = t.writes + 1, writer = fit.writer FROM fit
    WHERE fit.is_there AND t.thread_id = fit.thread AND t.checkpoint_ns = fit.ns
    AND (t.writer = fit.writer OR t.writes = fit.read)
    RETURNING t.thread_id, t.checkpoint_ns
), inserted AS (
    INSERT INTO affinity_langgraph_threads (thread_id, checkpoint_ns, writes, writer)
    SELECT thread, ns, 1, writer FROM fit WHERE NOT is_there AND read = 0
    ON CONFLICT (thread_id, checkpoint_ns) DO UPDATE
    SET writes = affinity_langgraph_threads.writes + 1, writer = excluded.writer
    WHERE affinity_langgraph_threads.writer = excluded.writer
    RETURNING thread_id, checkpoint_ns
), claimed AS MATERIALIZED (
    SELECT given.* FROM (SELECT * FROM updated UNION ALL SELECT * FROM inserted) AS mine
    JOIN given ON given.thread = mine.thread_id AND given.ns = mine.checkpoint_ns
), parents AS MATERIALIZED (
    SELECT c.thread_id, c.checkpoint_ns FROM claimed JOIN affinity_langgraph_checkpoints c
    ON c.thread_id = claimed.thread AND c.checkpoint_ns = claimed.ns AND c.checkpoint_id = claimed.parent
    FOR KEY SHARE OF c
), put AS (
    INSERT INTO affinity_langgraph_checkpoints (
        thread_id, checkpoint_ns, checkpoint_id, parent_id, run_id, checkpoint_type, checkpoint, metadata_type, metadata
    )
    SELECT
        thread, ns, checkpoint, parent, run, value_type, substring(:data FROM value_at FOR value_size),
        metadata_type, substring(:data FROM metadata_at FOR metadata_size)
    FROM claimed WHERE checkpoint IS NOT NULL AND (
        parent IS NULL OR EXISTS (SELECT FROM parents p WHERE p.thread_id = thread AND p.checkpoint_ns = ns)
    )
    ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO UPDATE SET
        parent_id = excluded.parent_id, run_id = excluded.run_id,
        checkpoint_type = excluded.checkpoint_type, checkpoint = excluded.checkpoint,
        metadata_type = excluded.metadata_type, metadata = excluded.metadata
    RETURNING thread_id, checkpoint_ns
), results AS (
    INSERT INTO affinity_langgraph_writes (
        thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, value_type, value
    )
    SELECT
        claimed.thread, claimed.ns, r.checkpoint, r.task, r.idx, r.path, r.channel,
        r.value_type, substring(:data FROM r.value_at FOR r.value_size)
    FROM json_to_recordset(:results) AS r (
        thread text, ns text, checkpoint text, task text, idx int, path text, channel text,
        value_type text, value_at int, value_size int
    )
    JOIN claimed ON claimed.thread = r.thread AND claimed.ns = r.ns
    ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO UPDATE SET
        task_path = excluded.task_path, channel = excluded.channel,
        value_type = excluded.value_type, value = excluded.value
    WHERE excluded.idx < 0
)
SELECT thread, ns, checkpoint IS NOT NULL AND EXISTS (
    SELECT FROM put WHERE put.thread_id = thread AND put.checkpoint_ns = ns
) FROM claimed;

-- put_write: of a task; the first one stays, but of a special channel the last one
INSERT INTO affinity_langgraph_writes (
    thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, value_type, value
)
VALUES (:thread, :ns, :checkpoint, :task, :idx, :path, :channel, :value_type, :value)
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO UPDATE SET
    task_path = excluded.task_path, channel = excluded.channel, value_type = excluded.value_type, value = excluded.value
WHERE excluded.idx < 0;

-- newest: the id of the newest checkpoint of a namespace
SELECT checkpoint_id FROM affinity_langgraph_checkpoints WHERE thread_id = :thread AND checkpoint_ns = :ns
ORDER BY checkpoint_id DESC LIMIT 1;

-- latest: the newest checkpoint of a namespace, with the number of its writes
SELECT
    thread_id, checkpoint_ns, checkpoint_id, parent_id, checkpoint_type, checkpoint, metadata_type, metadata,
    (SELECT writes FROM affinity_langgraph_threads WHERE thread_id = :thread AND checkpoint_ns = :ns),
    EXISTS (
        SELECT 1 FROM affinity_langgraph_writes w
        WHERE w.thread_id = c.thread_id AND w.checkpoint_ns = c.checkpoint_ns AND w.checkpoint_id = c.checkpoint_id
    )
FROM affinity_langgraph_checkpoints c WHERE thread_id = :thread AND checkpoint_ns = :ns
ORDER BY checkpoint_id DESC LIMIT 1;

-- one: a checkpoint by its id, with the number of writes of its namespace
SELECT
    thread_id, checkpoint_ns, checkpoint_id, parent_id, checkpoint_type, checkpoint, metadata_type, metadata,
    (SELECT writes FROM affinity_langgraph_threads WHERE thread_id = :thread AND checkpoint_ns = :ns),
    EXISTS (
        SELECT 1 FROM affinity_langgraph_writes w
        WHERE w.thread_id = c.thread_id AND w.checkpoint_ns = c.checkpoint_ns AND w.checkpoint_id = c.checkpoint_id
    )
FROM affinity_langgraph_checkpoints c
WHERE thread_id = :thread AND checkpoint_ns = :ns AND checkpoint_id = :checkpoint;

-- last_run: the run of the newest checkpoint that a run has written, with the metadata of that checkpoint
SELECT run_id, metadata_type, metadata FROM affinity_langgraph_checkpoints
WHERE thread_id = :thread AND checkpoint_ns = :ns AND run_id IS NOT NULL
ORDER BY checkpoint_id DESC LIMIT 1;

-- has_run: whether a run has written a checkpoint
SELECT 1 FROM affinity_langgraph_checkpoints
WHERE thread_id = :thread AND checkpoint_ns = :ns AND run_id = :run LIMIT 1;

-- page: checkpoints, newest first, behind the last row of the page before
SELECT
    thread_id, checkpoint_ns, checkpoint_id, parent_id, checkpoint_type, checkpoint, metadata_type, metadata,
    (
        SELECT writes FROM affinity_langgraph_threads t
        WHERE t.thread_id = c.thread_id AND t.checkpoint_ns = c.checkpoint_ns
    ),
    EXISTS (
        SELECT 1 FROM affinity_langgraph_writes w
        WHERE w.thread_id = c.thread_id AND w.checkpoint_ns = c.checkpoint_ns AND w.checkpoint_id = c.checkpoint_id
    )
FROM affinity_langgraph_checkpoints c
WHERE (CAST(:thread AS text) IS NULL OR thread_id = :thread)
AND (CAST(:ns AS text) IS NULL OR checkpoint_ns = :ns)
AND (CAST(:checkpoint AS text) IS NULL OR checkpoint_id = :checkpoint)
AND (CAST(:before AS text) IS NULL OR checkpoint_id < :before)
AND (
    CAST(:last_id AS text) IS NULL OR (checkpoint_id, thread_id, checkpoint_ns) < (:last_id, :last_thread, :last_ns)
)
ORDER BY checkpoint_id DESC, thread_id DESC, checkpoint_ns DESC LIMIT :most;

-- writes_of: the writes of the tasks of a checkpoint, in the order in which a run applies them
SELECT task_id, channel, value_type, value FROM affinity_langgraph_writes
WHERE thread_id = :thread AND checkpoint_ns = :ns AND checkpoint_id = :checkpoint
ORDER BY task_path, task_id, idx;

-- namespaces: of a thread
SELECT checkpoint_ns FROM affinity_langgraph_threads WHERE thread_id = :thread ORDER BY checkpoint_ns;

-- ids: of the checkpoints of a namespace
SELECT checkpoint_id FROM affinity_langgraph_checkpoints WHERE thread_id = :thread AND checkpoint_ns = :ns;

-- delete_thread: its right to write, first: it waits for a write that is under way
DELETE FROM affinity_langgraph_threads WHERE thread_id = :thread;

-- delete_thread_writes: of a thread
DELETE FROM affinity_langgraph_writes WHERE thread_id = :thread;

-- delete_thread_checkpoints: of a thread
DELETE FROM affinity_langgraph_checkpoints WHERE thread_id = :thread;

-- delete_run_writes: of the checkpoints of a run
DELETE FROM affinity_langgraph_writes WHERE (thread_id, checkpoint_ns, checkpoint_id) IN (
    SELECT thread_id, checkpoint_ns, checkpoint_id FROM affinity_langgraph_checkpoints WHERE run_id = :run
);

-- delete_run: the checkpoints of a run
DELETE FROM affinity_langgraph_checkpoints WHERE run_id = :run;

-- delete_writes_of: of a checkpoint
DELETE FROM affinity_langgraph_writes
WHERE thread_id = :thread AND checkpoint_ns = :ns AND checkpoint_id = :checkpoint;

-- delete_checkpoint: one
DELETE FROM affinity_langgraph_checkpoints
WHERE thread_id = :thread AND checkpoint_ns = :ns AND checkpoint_id = :checkpoint;

-- is_other: whether a thread has a checkpoint that another one has not
SELECT 1 FROM affinity_langgraph_checkpoints t WHERE thread_id = :target AND NOT EXISTS (
    SELECT 1 FROM affinity_langgraph_checkpoints s
    WHERE s.thread_id = :source AND s.checkpoint_ns = t.checkpoint_ns AND s.checkpoint_id = t.checkpoint_id
) LIMIT 1;

-- copy_thread: its namespaces; a run of the target that goes on may not write to it any more
INSERT INTO affinity_langgraph_threads (thread_id, checkpoint_ns, writes, writer)
SELECT :target, checkpoint_ns, 1, '' FROM affinity_langgraph_threads WHERE thread_id = :source
ON CONFLICT (thread_id, checkpoint_ns) DO UPDATE SET writes = affinity_langgraph_threads.writes + 1, writer = '';

-- copy_checkpoints: of a thread
INSERT INTO affinity_langgraph_checkpoints (
    thread_id, checkpoint_ns, checkpoint_id, parent_id, run_id, checkpoint_type, checkpoint, metadata_type, metadata
)
SELECT :target, checkpoint_ns, checkpoint_id, parent_id, run_id, checkpoint_type, checkpoint, metadata_type, metadata
FROM affinity_langgraph_checkpoints WHERE thread_id = :source
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO NOTHING;

-- copy_writes: of a thread
INSERT INTO affinity_langgraph_writes (
    thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, value_type, value
)
SELECT :target, checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, value_type, value
FROM affinity_langgraph_writes WHERE thread_id = :source
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO NOTHING;

-- get_item: by namespace and key
SELECT namespace, key, value, created_at, updated_at FROM affinity_langgraph_items
WHERE namespace = :namespace AND key = :key;

-- put_item: new, or in place of an earlier value
INSERT INTO affinity_langgraph_items (namespace, key, value, created_at, updated_at)
VALUES (:namespace, :key, :value, :now, :now)
ON CONFLICT (namespace, key) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at;

-- delete_item: by namespace and key
DELETE FROM affinity_langgraph_items WHERE namespace = :namespace AND key = :key;

-- search_items: of a namespace and of those below it, from :low to before :high, last written first
SELECT namespace, key, value, created_at, updated_at FROM affinity_langgraph_items
WHERE (namespace = :namespace OR (namespace >= :low AND namespace < :high))
ORDER BY updated_at DESC, namespace, key LIMIT :most OFFSET :offset;

-- all_items: last written first
SELECT namespace, key, value, created_at, updated_at FROM affinity_langgraph_items
ORDER BY updated_at DESC, namespace, key LIMIT :most OFFSET :offset;

-- item_namespaces: all of them
SELECT DISTINCT namespace FROM affinity_langgraph_items ORDER BY namespace;

-- version: of the tables
SELECT version FROM affinity_langgraph_schema;

-- set_version: once
INSERT INTO affinity_langgraph_schema (version)
SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM affinity_langgraph_schema);
