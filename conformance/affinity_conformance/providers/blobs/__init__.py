"""The suite's part for blobs."""
