"""The suite's part for the audit log."""
