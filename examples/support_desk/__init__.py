"""A support desk: an agent with tools, approvals, a child and revisits, behind HTTP with server-sent events."""
