-- Which code a worker runs, and since when this version is deployed. NULL: a release that says nothing registered it.
ALTER TABLE workers ADD COLUMN app TEXT;
ALTER TABLE workers ADD COLUMN code_version TEXT;
ALTER TABLE workers ADD COLUMN code_since REAL;
