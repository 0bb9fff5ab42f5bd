CREATE TABLE IF NOT EXISTS affinity_langgraph_schema (
    version integer NOT NULL
);

CREATE TABLE IF NOT EXISTS affinity_langgraph_threads (
    thread_id text NOT NULL,
    checkpoint_ns text NOT NULL,  -- '' of the graph itself; of a subgraph, its place
    writes integer NOT NULL,  -- how often it was written: what a writer has read
    writer text NOT NULL,  -- token of the run that wrote last, or id of the saver
    PRIMARY KEY (thread_id, checkpoint_ns)
);

CREATE TABLE IF NOT EXISTS affinity_langgraph_checkpoints (
    thread_id text NOT NULL,
    checkpoint_ns text NOT NULL,
    checkpoint_id text NOT NULL,  -- sorts by time
    parent_id text,
    run_id text,  -- of the metadata
    checkpoint_type text NOT NULL,  -- of LangGraph's serializer, as metadata_type
    checkpoint blob NOT NULL,
    metadata_type text NOT NULL,
    metadata blob NOT NULL,
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id)
);
CREATE INDEX IF NOT EXISTS affinity_langgraph_checkpoints_run ON affinity_langgraph_checkpoints (run_id)
WHERE run_id IS NOT NULL;

CREATE TABLE IF NOT EXISTS affinity_langgraph_writes (
    thread_id text NOT NULL,
    checkpoint_ns text NOT NULL,
    checkpoint_id text NOT NULL,  -- the checkpoint whose tasks these are; it may be written later
    task_id text NOT NULL,
    idx integer NOT NULL,  -- place among the writes of the task; negative: of a special channel
    task_path text NOT NULL,
    channel text NOT NULL,
    value_type text NOT NULL,
    value blob NOT NULL,
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
);

CREATE TABLE IF NOT EXISTS affinity_langgraph_items (
    namespace text NOT NULL,  -- labels, joined by dots
    key text NOT NULL,
    value text NOT NULL,  -- JSON
    created_at real NOT NULL,  -- seconds since 1970
    updated_at real NOT NULL,
    PRIMARY KEY (namespace, key)
);
