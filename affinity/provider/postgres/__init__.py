"""PostgreSQL: the engine for N worker replicas."""

from affinity.provider.postgres.provider import PostgresProvider

__all__ = ["PostgresProvider"]
