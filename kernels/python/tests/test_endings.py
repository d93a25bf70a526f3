"""The last run ends the process, as the end of a script would."""

import os
import signal
import subprocess
import threading

from harness import PYTHON, Ended, KernelCase

SCRIPTS = {
    "nothing special": "print('a')",
    "no newline": "print('a', end='')",
    "a failure": "def f():\n    1 / 0\nf()",
    "exit": "import sys\nprint('a')\nsys.exit(3)",
    "exit with a text": "import sys\nsys.exit('sorry')",
    "exit with nothing": "raise SystemExit",
    "exit with a negative number": "import sys\nsys.exit(-1)",
    "exit with a number that is too large": "import sys\nsys.exit(300)",
    "exit with the number of an interrupt": "import sys\nsys.exit(256 + 130)",
    "exit with a number that is far too large": "import sys\nsys.exit(2**70)",
    "exit handlers": "import atexit\natexit.register(print, 'bye')\nprint('a')",
    "an exit handler that fails": "import atexit\natexit.register(lambda: print(1 / 0))",
    "a thread": "import threading, time\ndef f():\n    time.sleep(0.2)\n    print('thread')\nthreading.Thread(target=f).start()\nprint('main')",
    "a daemon thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\nprint('main')",
    "a failure and a thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print('t'))).start()\n1 / 0",
    "objects that end": "class A:\n    def __del__(self): print('end of', self.n)\na = A(); a.n = 1\nb = A(); b.n = b'x'; b.self = b",
    "objects that have grown older": "import gc\nclass A:\n    def __del__(self): print('end')\na = A(); a.self = a\ngc.collect(0)",
    "objects that are as old as can be": "import gc\nclass A:\n    def __del__(self): print('end')\na = A(); a.self = a\ngc.collect(); gc.collect()",
    "objects that use globals at the end": "word = 'hello'\nclass A:\n    def __del__(self): print(word)\na = A()\ndef f(): return a",
    "a pool": "import concurrent.futures as c\np = c.ThreadPoolExecutor(2)\nf = p.submit(lambda: print('pooled'))",
    "exit in a thread": "import threading, sys\nt = threading.Thread(target=lambda: sys.exit(5)); t.start(); t.join()\nprint('on')",
    "a closed stdout": "import sys\nprint('a')\nsys.stdout.close()",
    "the name": "if __name__ == '__main__': print('main')",
    "its other names": "print([(n, v) for n, v in sorted(globals().items()) if n in ('__annotations__', '__cached__', '__doc__', '__package__', '__spec__')])",
    "a forked child": "import os, sys\nif os.fork() == 0:\n    print('child')\nelse:\n    os.wait(); print('parent')",
    "a forked child that fails": "import os, sys\npid = os.fork()\nif pid == 0: sys.exit(9)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
    "os._exit": "import os\nprint('a')\nos._exit(6)",
    "abort": "import os\nos.abort()",
    "killed": "import os\nprint('a', flush=True)\nos.kill(os.getpid(), 9)",
    "a process pool": "import multiprocessing as m\ndef f(x): return x * 2\nif __name__ == '__main__':\n    m.set_start_method('fork')\n    with m.Pool(2) as p: print(p.map(f, [1, 2]))",
}


class Endings(KernelCase):
    def test_like_a_script(self):
        """The same output and exit status as `python3 main.py`."""
        for name, code in SCRIPTS.items():
            with self.subTest(name):
                (self.workspace / "main.py").write_text(code)
                command = [PYTHON, "-u", "main.py"]
                script = subprocess.run(
                    command, cwd=self.workspace, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
                )
                kernel = self.start_kernel()
                kernel.start(code, last=True)
                try:
                    while kernel.next()["op"] != "done":
                        pass
                except Ended:
                    pass
                status = kernel.wait()
                stdout, stderr = (kernel.output[fd].decode() for fd in (kernel.out, kernel.err))
                self.assertEqual((status, stdout), (script.returncode, script.stdout), stderr)
                self.assertEqual(stderr.splitlines()[-1:], script.stderr.splitlines()[-1:])

    def test_done_comes_first(self):
        result = self.run_code(
            "import os, threading, time\ndef later():\n    while not os.path.exists('done'): time.sleep(0.01)\n    print('later')\nthreading.Thread(target=later).start()\n5",
            last=True,
        )
        self.assertEqual((result.value, result.stdout), (5, ""))
        self.make("done")
        self.assertEqual(self.kernel.wait(), 0)
        self.assertEqual(bytes(self.kernel.output[self.kernel.out]), b"later\n")

    def test_the_outcome_is_reported(self):
        result = self.run_code("1 / 0", last=True)
        self.assertEqual(result.error["type"], "ZeroDivisionError")
        self.assertEqual(self.kernel.wait(), 1)

    def test_tasks_are_cancelled(self):
        code = """
import asyncio
async def forever():
    try: await asyncio.sleep(1000)
    finally: print('cancelled')
t = asyncio.create_task(forever())
await asyncio.sleep(0)
print('end')
"""
        self.assertEqual(self.run_well(code, last=True).stdout, "end\ncancelled\n")
        self.assertEqual(self.kernel.wait(), 0)

    def test_interrupted(self):
        self.kernel.start("print('go')\nwhile True: pass", last=True)
        self.kernel.await_output("go\n")
        self.kernel.interrupt()
        self.assertTrue(self.kernel.finish().done["interrupted"])
        self.assertEqual(self.kernel.wait(), -signal.SIGINT)

    def test_interrupted_while_threads_are_awaited(self):
        code = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=False).start()"
        self.run_well(code, last=True)
        timer = threading.Timer(0.2, self.kernel.interrupt)
        timer.start()
        self.kernel.wait()
        timer.join()

    def test_a_stdout_that_cannot_be_written(self):
        code = "import os, sys\nprint('x', end='')\nos.close(1)"
        (self.workspace / "main.py").write_text(code)
        script = subprocess.run([PYTHON, "main.py"], cwd=self.workspace, capture_output=True, check=False, env={})
        self.assertEqual(script.returncode, 120)
        self.run_code(code, last=True)
        self.assertEqual(self.kernel.wait(), script.returncode)

    def test_a_file_name(self):
        self.assertEqual(self.value_of("__file__", last=True), str(self.workspace / "main.py"))

    def test_the_engine_is_gone(self):
        self.kernel.channel.close()
        self.assertEqual(self.kernel.wait(), 0)

    def test_the_engine_goes_while_a_tool_is_awaited(self):
        self.kernel.start("f()", tools=[{"name": "f", "doc": "", "parameters": [], "async": False}])
        self.kernel.next()
        self.kernel.channel.close()
        self.assertEqual(self.kernel.wait(), 0)

    def test_frames_that_are_none(self):
        for data in (b"\xff\xff\xff\xff", b"\x05\x00\x00\x00hello", b"\x02\x00\x00\x00[]", b"\x0c\x00\x00\x00" + b'{"op":"run"}'):
            kernel = self.start_kernel()
            kernel.channel.sendall(data)
            self.assertEqual(kernel.wait(), 76)

    def test_half_a_frame(self):
        self.kernel.channel.sendall(b"\x05\x00\x00\x00he")
        self.kernel.channel.close()
        self.assertEqual(self.kernel.wait(), 0)

    def test_unknown_frames_and_fields_are_ignored(self):
        self.kernel.send(op="news", text="?")
        self.kernel.send(op="answer", call=1, value=1)
        self.assertEqual(self.value_of("1 + 1", colour="blue"), 2)

    def test_a_frame_in_pieces(self):
        import json
        import struct
        import time

        data = json.dumps({"op": "run", "id": "x", "code": "'ü' * 3"}).encode()
        data = struct.pack("<I", len(data)) + data
        for at in range(0, len(data), 7):
            self.kernel.channel.sendall(data[at : at + 7])
            time.sleep(0.002)
        self.assertEqual(self.kernel.next()["value"], "üüü")

    def test_what_is_left_to_run_holds_no_answer_up(self):
        """`done` and `exit` come together where nothing lies between; else `done` comes first."""
        for code, together in (("1 + 1", True), ("import atexit\natexit.register(input)\n1 + 1", False)):
            with self.subTest(code):
                kernel = self.start_kernel()
                kernel.start(code, last=True, stdin={"live": True})
                self.assertEqual(kernel.next()["value"], 2)
                if together:
                    self.assertEqual(kernel.next()["op"], "exit")
                    self.assertEqual(kernel.wait(), 0)
                else:
                    self.assertIsNone(kernel.status)
                    os.kill(kernel.pid, signal.SIGKILL)
                    kernel.wait()
