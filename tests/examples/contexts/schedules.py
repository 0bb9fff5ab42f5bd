"""What the page takes for granted: an application, and two days."""

from datetime import UTC, datetime, timedelta

from affinity.testing import Env

app = affinity.App("shop")
monday, friday = datetime(2026, 3, 2, tzinfo=UTC), datetime(2026, 3, 6, tzinfo=UTC)
