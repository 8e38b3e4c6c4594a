"""A server's /metrics with what a controller knows, for the commands that read it."""

from __future__ import annotations

import http.server
import threading

from specdec.speculation.state import read
from support.world import MACHINES, make_world


def render(states, prefix="specdec:"):
    """The text format, as Triton writes it."""
    lines = []
    for family in dict.fromkeys(state.family for state in states):
        lines.append(f"# HELP {prefix}{family} Text\n# TYPE {prefix}{family} gauge")
        for state, value in states.items():
            if state.family == family:
                labels = "".join(f',{name}="{text}"' for name, text in state.labels)
                lines.append(f'{prefix}{family}{{model="speculative"{labels}}} {value}')
    return "\n".join(lines) + "\n"


def known_states(drafter="model", alpha=0.8, batch=2):
    """Seconds, as a server of 16 sequences would publish them."""
    world = make_world(lambda n, rows: MACHINES["cpu"](n, rows) / 1e3, drafter, 16)
    if batch:
        world.goodput([alpha] * batch, 60)
    return read(world.controller, 16)


class MetricsServer:
    def __init__(self, text):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200 if self.path == "/metrics" else 404)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self):
        self._server.shutdown()
        self._server.server_close()
