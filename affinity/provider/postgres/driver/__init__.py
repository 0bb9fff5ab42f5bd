"""The wire protocol on libpq: connections, values as arrays, the URL and the settings, errors, and the timeline."""
