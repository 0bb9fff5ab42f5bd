-- Functions that neither this release nor the one before it calls: `commit_turns_3` has replaced the first two,
-- `release_sessions_2` the last one. (`reset_instance_3` still calls `reset_instance_2`, and that `reset_instance_1`.)
-- oldest code: 32
DROP FUNCTION commit_turns_1;
DROP FUNCTION commit_turns_2;
DROP FUNCTION release_sessions_1;
