-- How many sessions a worker may hold, as it says when it registers. NULL: a release that says nothing registered it.
ALTER TABLE workers ADD COLUMN capacity INTEGER;
