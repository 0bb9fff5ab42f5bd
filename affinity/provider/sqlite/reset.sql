-- begin: open an instance again in its next execution, if it is where the caller has seen it
UPDATE instances SET
    execution_id = execution_id + 1,
    event_count = :event_count,
    status = 'running',
    output = NULL,
    error = NULL,
    custom_status = :custom_status,
    labels = :labels,
    owner_incarnation = NULL,
    claims = 0,
    unknown_since = NULL,
    unread = 0,
    gate = NULL,
    limited = iif(status IN ('running', 'suspended'), limited, NULL), -- one that has not ended keeps its slots
    updated_at = :now
WHERE instance_id = :instance_id AND generation = :generation AND execution_id = :execution_id AND event_count = :seen;

-- copy: copy the first events of an execution to the next one
INSERT INTO history (instance_id, execution_id, event_id, event, recorded_at, recorded_events, recorded_by, run_by, attempt, queued_for)
SELECT instance_id, execution_id + 1, event_id, event, recorded_at, recorded_events, recorded_by, run_by, attempt, queued_for
FROM history
WHERE instance_id = :instance_id AND execution_id = :execution_id AND event_id <= :keep;

-- timers: when the timers of an execution fire
SELECT timer_id, visible_at FROM orchestrator_queue
WHERE instance_id = :instance_id AND timer_execution = :execution_id;

-- drop_timers: of an execution
DELETE FROM orchestrator_queue WHERE instance_id = :instance_id AND timer_execution = :execution_id;

-- go_ahead: put new messages before all others of their instance, also before the messages of an earlier reset
UPDATE orchestrator_queue SET visible_at = (
    SELECT min(0.0, coalesce(min(older.visible_at), 0.0) - 1.0) FROM orchestrator_queue AS older
    WHERE older.instance_id = :instance_id AND older.id <= :after
)
WHERE instance_id = :instance_id AND id > :after;

-- last_message: the id of the youngest message
SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'orchestrator_queue';
