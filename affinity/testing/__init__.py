"""What proves a provider or a store: the conformance suites, for ours and for those of others. Needs pytest."""
