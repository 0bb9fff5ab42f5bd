import pytest

from tests.session.application import Application


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def app() -> Application:
    return Application()
