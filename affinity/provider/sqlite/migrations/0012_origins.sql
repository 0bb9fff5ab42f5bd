-- When and by which worker events were recorded: see affinity/provider/rows.py. On the first event of each turn, with the
-- number of events that it stands for; NULL on the others. run_by: the worker that ran the activity, where it is not the
-- first attempt of recorded_by.
ALTER TABLE history ADD COLUMN recorded_at REAL;
ALTER TABLE history ADD COLUMN recorded_events INTEGER;
ALTER TABLE history ADD COLUMN recorded_by TEXT;
ALTER TABLE history ADD COLUMN run_by TEXT;
ALTER TABLE history ADD COLUMN attempt INTEGER;
