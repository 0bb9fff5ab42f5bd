"""What the page takes for granted: an application, and two days."""

from datetime import UTC, datetime, timedelta

import affinity
from affinity.testing import Env

app = affinity.App("shop")
env = Env(app)
monday = datetime(2026, 3, 2, tzinfo=UTC)
friday = monday + timedelta(days=4)
