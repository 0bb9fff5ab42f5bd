-- What entries have used that are gone: a total does not shrink when retention removes them.

-- used: by writer, the number of these entries with a usage, and its sum by name: {"WRITER": [3, {"tokens": 30}]}. A writer is
-- the beginning that the ids of the wakes of one instance share.
ALTER TABLE journals ADD COLUMN used TEXT NOT NULL DEFAULT '{}';
