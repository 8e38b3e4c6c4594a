import re
import socket

import pytest

from specdec.errors import InvalidConfig
from specdec.launcher.ports import HOST, Ports


def test_free_ports_differ_and_pass():
    ports = Ports.free()
    assert len({ports.http, ports.grpc, ports.metrics}) == 3
    ports.check()


@pytest.mark.parametrize("host", [HOST, "0.0.0.0"])
def test_every_port_in_use_is_named(host):
    free = Ports.free()
    with socket.create_server((host, 0)) as a, socket.create_server((host, 0)) as b:
        ports = Ports(a.getsockname()[1], free.grpc, b.getsockname()[1])
        with pytest.raises(InvalidConfig) as caught:
            ports.check()
    message = str(caught.value)
    assert re.findall(r"(\w+) port \d+ is in use: set (\w+)", message) == [
        ("http", "HTTP_PORT"),
        ("metrics", "METRICS_PORT"),
    ]


def test_equal_ports():
    with pytest.raises(InvalidConfig, match=r"must differ: found \[8000, 8000, 8002\]"):
        Ports(8000, 8000, 8002).check()


def test_no_such_port():
    with pytest.raises(InvalidConfig, match=r"http port 70000 is not in 1\.\.65535"):
        Ports(http=70000, grpc=Ports.free().grpc, metrics=Ports.free().metrics).check()
