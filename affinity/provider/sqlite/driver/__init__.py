"""A connection to the file, its transactions, and the thread that it lives on."""
