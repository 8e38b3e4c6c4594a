"""Becomes the server. Run as a script by `TritonServer`: exec_server.py PARENT BINARY ARGUMENT...

Two things must happen in the new process itself: asking the kernel to end it when its launcher
dies, however that dies, and naming its shared memory after its own process id.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PID = "{pid}"  # replaced in every argument


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the kernel was told
        sys.exit(1)
    os.execv(command[0], [x.replace(PID, str(os.getpid())) for x in command])


if __name__ == "__main__":
    main()
