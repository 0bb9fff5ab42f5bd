"""The kernel's part of the suite: workers, sessions, work items, turns, instances, session state, clients."""
