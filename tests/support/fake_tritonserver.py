"""Stands in for the tritonserver binary: same arguments, same log lines, same leftovers.

The environment variable FAKE_TRITON says how it behaves:
    ready        loads, answers, ends on SIGTERM
    fails:FILE   writes FILE to its log and ends with 1
    stubborn     ready, and ignores SIGTERM
    loading      never becomes ready
    exits        ready, and ends by itself when FAKE_TRITON_FILE appears
"""

import http.server
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path


def _arguments() -> dict[str, str]:
    pairs = [x.removeprefix("--").partition("=") for x in sys.argv[1:]]
    return {name: value for name, _, value in pairs}


class _Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/v2/health/ready" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    arguments, mode = _arguments(), os.environ["FAKE_TRITON"]
    if mode.startswith("fails:"):
        print(Path(mode.removeprefix("fails:")).read_text(), flush=True)
        sys.exit(1)
    prefix = arguments["backend-config"].removeprefix("python,shm-region-prefix-name=")
    Path(f"/dev/shm/{prefix}{uuid.uuid4()}").write_bytes(b"region")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print(f"CHILD {child.pid}", flush=True)
    print("I1129 17:10:04.6 9 model_lifecycle.cc:839] \"successfully loaded 'm1'\"", flush=True)
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if mode != "loading":
        address = (arguments["http-address"], int(arguments["http-port"]))
        server = http.server.ThreadingHTTPServer(address, _Health)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    while not (mode == "exits" and Path(os.environ["FAKE_TRITON_FILE"]).exists()):
        time.sleep(0.05)


if __name__ == "__main__":
    main()
