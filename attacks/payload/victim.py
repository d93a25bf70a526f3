"""A process of the host that must stay untouched: it holds a secret in its arguments, environment, memory and an
open file, and tells the runner on stdout about any signal that reaches it and when its memory was changed."""

import ctypes
import os
import signal
import sys
import tempfile


def main() -> None:
    secret = os.environ["VICTIM_SECRET"].encode()
    memory = ctypes.create_string_buffer(secret)
    file = tempfile.TemporaryFile()
    file.write(secret)
    file.flush()
    # Any process may try to trace this one, so that Yama is not what protects it.
    ctypes.CDLL(None).prctl(0x59616D61, -1, 0, 0, 0)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(number, lambda got, _frame: print(f"signal {got}", flush=True))
    print(f"ready {ctypes.addressof(memory)} {file.fileno()}", flush=True)
    for _ in sys.stdin:
        print("intact" if memory.value == secret else "changed", flush=True)


main()
