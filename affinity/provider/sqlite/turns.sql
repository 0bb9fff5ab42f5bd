-- fences: of the instances of a batch that the caller owns and that have not finished
SELECT json_group_array(json_array(i.instance_id, i.generation, i.execution_id, i.event_count))
FROM json_each(:instance_ids) AS j
CROSS JOIN instances AS i ON i.instance_id = j.value
WHERE i.owner_worker = :worker_id AND i.owner_incarnation = :incarnation
  AND i.status IN ('pending', 'running');

-- append: events of histories; the first one of each turn comes with the number of all
INSERT INTO history (instance_id, execution_id, event_id, event, recorded_at, recorded_events, recorded_by)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3,
       iif(value ->> 4 IS NULL, NULL, :now), value ->> 4, iif(value ->> 4 IS NULL, NULL, :worker_id)
FROM json_each(:rows);

-- add_runs: to the events that are results of activities
UPDATE history SET run_by = j.value ->> 3, attempt = j.value ->> 4, queued_for = j.value ->> 5
FROM json_each(:rows) AS j
WHERE history.instance_id = j.value ->> 0 AND history.execution_id = j.value ->> 1 AND history.event_id = j.value ->> 2;

-- advance: move instances behind their turns
UPDATE instances SET
    execution_id = execution_id + (j.value ->> 2),
    event_count = iif(j.value ->> 2, 0, event_count + (j.value ->> 1)),
    status = j.value ->> 3,
    version = coalesce(j.value ->> 4, version),
    custom_status = coalesce(j.value ->> 5, custom_status),
    output = j.value ->> 6,
    error = j.value ->> 7,
    unread = coalesce(j.value ->> 8, unread),
    claims = 0,
    unknown_since = NULL,
    updated_at = :now
FROM json_each(:rows) AS j
WHERE instances.instance_id = j.value ->> 0;

-- go_on: the same for turns that change nothing else of their instances; indexes of the other columns stay
UPDATE instances SET
    event_count = event_count + (j.value ->> 1),
    custom_status = coalesce(j.value ->> 2, custom_status),
    unread = coalesce(j.value ->> 3, unread),
    claims = 0,
    unknown_since = NULL,
    updated_at = :now
FROM json_each(:rows) AS j
WHERE instances.instance_id = j.value ->> 0;

-- label: instances
UPDATE instances SET labels = j.value ->> 1
FROM json_each(:rows) AS j WHERE instances.instance_id = j.value ->> 0;

-- consume: messages that are in the history now
DELETE FROM orchestrator_queue WHERE id IN (
    SELECT q.id FROM json_each(:rows) AS j
    CROSS JOIN orchestrator_queue AS q ON q.id = j.value ->> 1 AND q.instance_id = j.value ->> 0
);

-- cancel_activities: work items, locked or not
DELETE FROM worker_queue WHERE id IN (
    SELECT q.id FROM json_each(:rows) AS j
    CROSS JOIN worker_queue AS q
        ON q.instance_id = j.value ->> 0 AND q.execution_id = j.value ->> 1 AND q.activity_id = j.value ->> 2
);

-- cancel_timers: the messages of timers
DELETE FROM orchestrator_queue WHERE id IN (
    SELECT q.id FROM json_each(:rows) AS j
    CROSS JOIN orchestrator_queue AS q
        ON q.instance_id = j.value ->> 0 AND q.timer_execution = j.value ->> 1 AND q.timer_id = j.value ->> 2
);
