-- What each worker has code for: {kind: {name: digest}}.
ALTER TABLE workers ADD COLUMN registered jsonb NOT NULL DEFAULT '{}';
