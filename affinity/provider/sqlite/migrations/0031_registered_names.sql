-- What each worker has code for: {kind: {name: digest}}, as JSON.
ALTER TABLE workers ADD COLUMN registered TEXT NOT NULL DEFAULT '{}';
