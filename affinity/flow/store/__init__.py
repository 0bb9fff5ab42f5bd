"""The store of limits: tables, verbs and their contract."""
