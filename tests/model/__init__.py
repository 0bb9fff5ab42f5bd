"""Random plans against the provider contract and against the worker above it, judged by a plain reference model."""
