import pytest

from support.answers import SCRIPTS
from support.fake_service import FakeService, start


@pytest.fixture
def service():
    service = FakeService()
    service.scripts.update(SCRIPTS)
    server, service.url = start(service)
    yield service
    server.stop(None).wait()
