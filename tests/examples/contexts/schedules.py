"""What the page takes for granted: an application, and two days."""

from datetime import UTC, datetime, timedelta

import affinity

app = affinity.App("shop")
monday = datetime(2026, 3, 2, tzinfo=UTC)
friday = monday + timedelta(days=4)
