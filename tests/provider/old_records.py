"""What holds of a record of a release that knew no birth tokens, on both databases."""

from __future__ import annotations

import pytest

from affinity.errors import SessionWriteConflict
from affinity.records import SessionState, SessionStore


async def check_record_before_births(states: SessionStore) -> None:
    """Record ``s``, in its first version, can be written as what it is, and nothing made anew is taken for it."""
    old = await states.load("s")
    assert old is not None
    assert await states.save(SessionState(session_id="s", state=b"2"), expected_version=1, birth=old.birth) == 2
    await states.delete(["s"])
    await states.save(SessionState(session_id="s", state=b"anew"))
    with pytest.raises(SessionWriteConflict, match="another one was created"):
        await states.save(SessionState(session_id="s", state=b"late"), expected_version=1, birth=old.birth)
