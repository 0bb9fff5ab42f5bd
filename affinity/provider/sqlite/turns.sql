-- fences: where the instances of a batch stand, and whether the caller is their owner
SELECT i.instance_id, i.execution_id, i.event_count, i.status
FROM json_each(:instance_ids) AS j
CROSS JOIN instances AS i ON i.instance_id = j.value
WHERE i.owner_worker = :worker_id AND i.owner_incarnation = :incarnation;

-- append: an event of a history
INSERT INTO history (instance_id, execution_id, event_id, event) VALUES (?, ?, ?, ?);

-- advance: move an instance behind a turn
UPDATE instances SET
    execution_id = execution_id + :continued,
    event_count = CASE WHEN :continued THEN 0 ELSE event_count + :events END,
    status = :status,
    version = coalesce(:version, version),
    custom_status = coalesce(:custom_status, custom_status),
    output = :output,
    error = :error,
    claims = 0,
    unknown_since = NULL,
    updated_at = :now
WHERE instance_id = :instance_id;

-- consume: a message that is in the history now
DELETE FROM orchestrator_queue WHERE id = ? AND instance_id = ?;

-- cancel_activity: a work item, whoever has it in hand
DELETE FROM worker_queue WHERE instance_id = ? AND execution_id = ? AND activity_id = ?;

-- cancel_timer: a timer's message
DELETE FROM orchestrator_queue WHERE instance_id = ? AND timer_execution = ? AND timer_id = ?;

-- clear_items: all work items of an instance
DELETE FROM worker_queue WHERE instance_id = ?;

-- clear_messages: all messages of an instance
DELETE FROM orchestrator_queue WHERE instance_id = ?;
