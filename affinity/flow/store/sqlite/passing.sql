-- add: items of the queue, with their slots
INSERT INTO limited_work (line_id, item_id, instance_id, since, admitted_at)
SELECT j.value ->> 1, q.id, q.instance_id, :now, :now
FROM json_each(:rows) AS j CROSS JOIN worker_queue AS q
    ON q.instance_id = j.value ->> '$[0][0]' AND q.execution_id = j.value ->> '$[0][1]'
    AND q.activity_id = j.value ->> '$[0][2]';
