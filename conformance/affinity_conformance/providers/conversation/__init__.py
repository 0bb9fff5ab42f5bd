"""The suite's part for conversations: journals, wakes, requests, streams, lineage, parked work items."""
