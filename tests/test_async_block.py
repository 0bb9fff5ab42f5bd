"""A block for `async with` says so if it is opened with `with`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from affinity import App, Client, Worker

URL = "sqlite:///never_opened.db"


@pytest.mark.parametrize("make", [lambda: Client(URL), lambda: Worker(App(), URL)])
def test_a_plain_with_names_the_remedy(make: Callable[[], Any]) -> None:
    block = make()
    with pytest.raises(TypeError, match=f"{type(block).__name__} is opened with `async with`"), block:
        pass
