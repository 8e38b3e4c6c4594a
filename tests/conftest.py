"""For every test: Ctrl-C reaches the programs that tests start."""

import signal

# A shell that runs pytest in the background has it ignore SIGINT, and children inherit that; with
# a handler here they start with the default again.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
