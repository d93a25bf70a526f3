"""SIGINT ends what the code does, and never the kernel."""

import os
import signal
import time

from harness import KernelCase


class Interrupts(KernelCase):
    def interrupted(self, code, **fields):
        """Runs code that says `go` when it wants to be interrupted."""
        self.kernel.start(code, **fields)
        self.kernel.await_output("go\n")
        time.sleep(0.2)
        self.kernel.interrupt()
        return self.kernel.finish()

    def test_busy_and_sleeping_code(self):
        for wait in (
            "while True: pass",
            "import time; time.sleep(1000)",
            "import threading; threading.Event().wait()",
            "import subprocess; subprocess.run(['sleep', '1000'])",
        ):
            with self.subTest(wait):
                result = self.interrupted(f"x = 5\nprint('go')\n{wait}")
                self.assertTrue(result.done["interrupted"])
                self.assertEqual((result.ok, result.error["type"], result.error["line"]), (False, "KeyboardInterrupt", 3))
                self.assertNotIn("belljar_kernel", result.error["traceback"])
                self.assertEqual(self.value_of("x"), 5)

    def test_awaiting_code(self):
        result = self.interrupted("import asyncio\nprint('go')\nawait asyncio.sleep(1000)")
        self.assertEqual(
            (result.done.get("interrupted"), result.error["type"], result.error["line"]), (True, "KeyboardInterrupt", 3)
        )
        result = self.interrupted("import asyncio\nprint('go')\nwhile True: await asyncio.sleep(0)")
        self.assertTrue(result.done["interrupted"])
        result = self.interrupted("await asyncio.sleep(0)\nprint('go')\nwhile True: pass")
        self.assertEqual((result.done.get("interrupted"), result.error["line"]), (True, 3))
        self.assertEqual(self.value_of("await asyncio.sleep(0, 3)"), 3)

    def test_awaiting_code_can_clean_up(self):
        code = "import asyncio\ntry:\n    print('go')\n    await asyncio.sleep(1000)\nfinally:\n    await asyncio.sleep(0)\n    print('clean')"
        self.assertTrue(self.interrupted(code).stdout.endswith("clean\n"))

    def test_another_task_that_is_busy(self):
        code = "import asyncio\nasync def busy():\n    print('go')\n    while True: pass\nt = asyncio.create_task(busy())\nawait asyncio.sleep(1000)"
        self.assertTrue(self.interrupted(code).done["interrupted"])
        self.assertEqual(self.value_of("await asyncio.sleep(0, 3)"), 3)

    def test_code_that_catches_it(self):
        result = self.interrupted("try:\n    print('go')\n    while True: pass\nexcept KeyboardInterrupt:\n    'caught'\n'caught'")
        self.assertEqual((result.ok, result.value, result.done.get("interrupted")), (True, "caught", None))

    def test_a_text_without_end(self):
        result = self.interrupted("class A:\n    def __repr__(self):\n        print('go')\n        while True: pass\nA()")
        self.assertTrue(result.done["interrupted"])
        self.assert_works()
        result = self.interrupted(
            "class E(Exception):\n    def __str__(self):\n        print('go')\n        while True: pass\nraise E"
        )
        self.assertEqual(result.error["type"], "E")
        self.assert_works()

    def test_between_runs_it_does_nothing(self):
        for _ in range(20):
            self.kernel.interrupt()
            self.assert_works()
        time.sleep(0.05)
        self.assert_works()

    def test_a_storm_of_them_never_breaks_the_kernel(self):
        """At any moment: while frames are read and written, while the outcome is looked at."""
        pid = os.fork()
        if pid == 0:
            try:
                while True:
                    os.kill(self.kernel.pid, 2)
                    time.sleep(0.0003)
            finally:
                os._exit(0)
        try:
            seen = set()
            for number in range(400):
                result = self.kernel.run(f"display('x' * 5000)\nx = {number}\nsum(range(500))")
                seen.add(result.done.get("interrupted", False))
                if result.ok:
                    self.assertEqual(result.value, 124750)
        finally:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        self.assert_works()

    def test_handlers_of_the_code(self):
        self.run_well("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)")
        self.assertTrue(self.interrupted("print('go')\nwhile True: pass").done["interrupted"])
        self.run_well("def handler(*_): raise TimeoutError('mine')\nsignal.signal(signal.SIGINT, handler)")
        self.kernel.interrupt()
        time.sleep(0.02)
        self.assert_works()
        result = self.interrupted("signal.signal(signal.SIGINT, handler)\nprint('go')\nwhile True: pass")
        self.assertEqual(result.error["type"], "TimeoutError")

    def test_alarms(self):
        self.run_well("import signal, time\ndef alarm(*_): raise TimeoutError('late')\nsignal.signal(signal.SIGALRM, alarm)")
        self.assertEqual(
            self.run_code("signal.setitimer(signal.ITIMER_REAL, 0.05)\ntime.sleep(1000)").error["type"], "TimeoutError"
        )
        self.run_well("1")
        os.kill(self.kernel.pid, signal.SIGALRM)
        time.sleep(0.2)  # it rings between two runs: the next one gets it
        self.assertEqual(self.run_code("time.sleep(5)").error["type"], "TimeoutError")
        self.assert_works()

    def test_an_alarm_that_rings_all_the_time(self):
        self.run_well(
            "import signal\nclass Ring(BaseException): pass\ndef alarm(*_): raise Ring\nsignal.signal(signal.SIGALRM, alarm)"
        )
        self.run_code("signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0005)")
        for _ in range(100):
            self.kernel.run("display('x' * 100000)\nsum(range(2000))")
        while not self.kernel.run("signal.setitimer(signal.ITIMER_REAL, 0)").ok:
            pass
        self.assert_works()

    def test_children_start_with_no_signal_blocked(self):
        code = "import subprocess\nsubprocess.run(['grep', 'SigBlk', '/proc/self/status'], capture_output=True).stdout.decode().split()[1]"
        self.assertEqual(int(self.value_of(code), 16), 0)

    def test_while_a_tool_is_awaited(self):
        spec = [{"name": "slow", "doc": "", "parameters": [], "async": False}]
        self.kernel.start("print('go')\nslow()", tools=spec)
        self.assertEqual(self.kernel.next()["op"], "call")
        self.kernel.interrupt()
        self.assertTrue(self.kernel.finish().done["interrupted"])
        self.kernel.send(op="answer", call=1, value="too late")
        self.assert_works()
