"""What holds for every test."""

from __future__ import annotations

import signal

# A run started in the background inherits an ignored Ctrl-C, and the programs that tests start would inherit it too.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
