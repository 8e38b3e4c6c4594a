"""Clients may ask for some of the outputs: Triton drops the others while it does not hold Python's
lock, and they must not be freed there.

Arrays freed so corrupt Python's memory, and the process dies now and then, later and elsewhere. The
ones of this model run Python code when they are freed: without the lock it dies at the first.
"""

import numpy as np
import pytest

from specdec.launcher.embedded import EmbeddedServer
from specdec.launcher.ports import Ports
from specdec.launcher.server import TritonServer
from support.serving import Served, add_input, infer_request

pytestmark = pytest.mark.server

NUM_RESPONSES = 20
MODEL = f"""
import numpy as np
from specdec.speculation.triton_io import Outbox


class Touchy(np.ndarray):
    def __del__(self):
        pass


def outputs():
    return dict(ASKED=np.zeros(1, np.int32), UNASKED=np.zeros(1, np.int32).view(Touchy))


class TritonPythonModel:
    def initialize(self, args):
        self.outbox = Outbox()

    def execute(self, requests):
        for request in requests:
            client = self.outbox.open(request)
            for num_left in reversed(range({NUM_RESPONSES})):
                client.send(outputs, final=num_left == 0)

    def finalize(self):
        self.outbox.stop()
"""
CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "ASKED" data_type: TYPE_INT32 dims: [ 1 ] },
         { name: "UNASKED" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""


@pytest.fixture(scope="module")
def touchy(tmp_path_factory):
    directory = tmp_path_factory.mktemp("touchy")
    version = directory / "models" / "touchy" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    embedded = EmbeddedServer.locate()
    embedded.write_backends(directory / "backends")
    server = TritonServer(
        embedded,
        models=directory / "models",
        backends=directory / "backends",
        log=directory / "log",
        ports=Ports.free(),
    )
    with server:
        server.wait_ready(timeout=60)
        yield Served(server)


def test_outputs_nobody_asked_for(touchy):
    for asked in ({"ASKED"}, {"ASKED", "UNASKED"}):
        request = infer_request("touchy")
        add_input(request, "X", np.zeros(1, np.int32))
        for name in sorted(asked):
            request.outputs.add(name=name)
        answer = touchy.call(request, timeout=5).finish()
        assert answer.errors == []
        found = [{x.name for x in body.get_response().outputs} for body in answer.bodies]
        assert found == [asked] * NUM_RESPONSES
