"""The suite's part for trends."""
