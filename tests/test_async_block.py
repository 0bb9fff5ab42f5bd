"""What is opened with `async with` says so where it is opened with `with`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from affinity import App, Client, Worker
from affinity.conversation.follow import EventFeed

URL = "sqlite:///never_opened.db"


@pytest.mark.parametrize(
    "make", [lambda: Client(URL), lambda: Worker(App(), URL), lambda: EventFeed.__new__(EventFeed)]
)
def test_a_plain_with_names_the_remedy(make: Callable[[], Any]) -> None:
    block = make()
    with pytest.raises(TypeError, match=f"{type(block).__name__} is opened with `async with`"), block:
        pass
