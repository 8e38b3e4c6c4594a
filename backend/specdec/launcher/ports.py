"""The three ports of a server, and whether they are free."""

from __future__ import annotations

import errno
import socket
from dataclasses import asdict, dataclass

from specdec.errors import InvalidConfig

HOST = "127.0.0.1"  # the embedded 2024 server has known HTTP vulnerabilities: never bind wider


@dataclass(frozen=True, slots=True)
class Ports:
    http: int = 8000
    grpc: int = 8001
    metrics: int = 8002

    @classmethod
    def free(cls) -> Ports:
        """Three ports that are free now."""
        sockets = [socket.create_server((HOST, 0)) for _ in range(3)]
        numbers = [s.getsockname()[1] for s in sockets]
        for s in sockets:
            s.close()
        return cls(*numbers)

    def check(self) -> None:
        """Raises `InvalidConfig` naming every port that cannot be bound, and how to change it."""
        ports: dict[str, int] = asdict(self)
        if len(set(ports.values())) < len(ports):
            raise InvalidConfig(f"the three ports must differ: found {list(ports.values())}")
        faults = []
        for name, port in ports.items():
            if reason := _why_not(port):
                option = f"{name.upper()}_PORT or --{name}-port"
                faults.append(f"{name} port {port} {reason}: set {option} to another one")
        if faults:
            raise InvalidConfig("; ".join(faults))


DEFAULT_PORTS = Ports()


def _why_not(port: int) -> str:
    try:
        socket.create_server((HOST, port)).close()
    except OSError as error:
        known = {errno.EADDRINUSE: "is in use", errno.EACCES: "needs privileges"}
        return known.get(error.errno or 0, f"cannot be used ({error.strerror})")
    except OverflowError:
        return "is not in 1..65535"
    return ""
