"""A connection to the file, its transactions, the thread that it lives on, errors, and the timeline."""
