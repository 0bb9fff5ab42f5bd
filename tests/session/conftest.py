import pytest

from tests.session.application import Application


@pytest.fixture
def app() -> Application:
    return Application()
