"""Standard input, output and error, also those of child processes."""

import os
import threading

from harness import KernelCase


class Output(KernelCase):
    def test_both_streams(self):
        result = self.run_well("import sys\nprint('a')\nprint('b', file=sys.stderr)\nsys.stdout.write('no end')")
        self.assertEqual((result.stdout, result.stderr), ("a\nno end", "b\n"))

    def test_in_order_with_child_processes(self):
        code = """
import os, subprocess, sys, multiprocessing
for i in range(3):
    print(i, end=' ')
    subprocess.run(['echo', 'child'])
print('x', end=''); os.system('echo y')
print('f', end='')
if os.fork() == 0:
    os.write(1, b'g'); os._exit(0)
os.wait()
print('h')
print('s', end=''); os.waitpid(os.posix_spawn('/bin/echo', ['echo', 't'], {}), 0)
"""
        self.assertEqual(self.run_well(code).stdout, "0 child\n1 child\n2 child\nxy\nfgh\nst\n")

    def test_lines_are_out_before_the_end(self):
        self.kernel.start("import time\nprint('early')\ntime.sleep(1000)")
        self.kernel.await_output("early\n")

    def test_descriptors_are_back_in_the_next_run(self):
        for code in (
            "import os\nos.close(1); os.close(2)",
            "import os\nos.dup2(os.open('/dev/null', os.O_WRONLY), 1)",
            "import sys\nsys.stdout.close(); sys.stderr.close()",
            "import os\nos.close(1); os.open('/dev/null', os.O_WRONLY)",
        ):
            self.run_code(code)
            result = self.run_well("import subprocess, sys\nprint('out'); print('err', file=sys.stderr); subprocess.run(['echo', 'child'])\nNone")
            self.assertEqual((result.stdout, result.stderr), ("out\nchild\n", "err\n"), code)

    def test_what_could_not_be_written_is_not_written_by_the_next_run(self):
        for action in ("os.close({fd})", "os.dup2(os.open('/dev/full', 1), {fd})"):
            for fd, stream in ((1, "sys.stdout"), (2, "sys.stderr")):
                self.run_code(f"import os, sys\n{action.format(fd=fd)}; print('lost', file={stream})")
                result = self.run_well("print('out'); print('err', file=sys.stderr)")
                self.assertEqual((result.stdout, result.stderr), ("out\n", "err\n"), action)

    def test_c_code(self):
        code = "import ctypes\nctypes.CDLL(None).printf(b'from C')\nNone"
        self.assertEqual(self.run_well(code).stdout, "from C")

    def test_any_text(self):
        result = self.run_well("print('ü€\\U0001f600')\nimport sys\nsys.stdout.buffer.write(b'\\xff\\xfe')\nprint('\\udcff')")
        self.assertTrue(result.stdout.startswith("ü€\U0001f600\n"))
        self.assertEqual(self.run_code("print('\\ud800')").error["type"], "UnicodeEncodeError")

    def test_much_output(self):
        result = self.run_well("for i in range(100_000): print('line', i)")
        self.assertEqual(len(result.stdout.splitlines()), 100_000)

    def test_a_replaced_stdout_lasts_for_the_run(self):
        result = self.run_well("import sys, io\nkept = sys.stdout = io.StringIO()\nprint('inside')")
        self.assertEqual(result.stdout, "")
        self.assertEqual(self.run_well("print('outside')\nkept.getvalue()").value, "inside\n")

    def test_streams_that_were_closed_or_taken_away(self):
        for code in (
            "import sys; sys.stdout.close(); sys.stderr.close()", "import sys; sys.stdout = sys.stderr = sys.stdin = None",
            "import sys; del sys.stdout", "import sys; b = sys.stdout.detach()", "exit(0)", "import sys; sys.stdin.close()",
        ):  # fmt: skip
            with self.subTest(code):
                self.run_code(code)
                self.assert_works()

    def test_a_failure_without_streams_is_reported(self):
        result = self.run_code("import sys\nsys.stdout = sys.stderr = None\n1 / 0")
        self.assertEqual(result.error["type"], "ZeroDivisionError")

    def test_threads_that_go_on_printing(self):
        code = """
import threading, time
go = True
def talk():
    while go: print('tick'); time.sleep(0.001)
threading.Thread(target=talk, daemon=True).start()
"""
        self.run_well(code)
        self.run_well("time.sleep(0.05)")
        self.run_well("go = False; time.sleep(0.05)")
        self.assert_works()

    def test_streams_look_as_usual(self):
        value = self.value_of(
            "import sys\n[[s.name, s.fileno(), s.encoding, s.isatty()] for s in (sys.stdin, sys.stdout, sys.stderr)]"
        )
        names = ("<stdin>", "<stdout>", "<stderr>")
        self.assertEqual(value, [[name, number, "utf-8", False] for number, name in enumerate(names)])


class Input(KernelCase):
    def test_none(self):
        error = self.run_code("input('name? ')").error
        self.assertEqual(error["type"], "EOFError")
        self.assertIn("no standard input", error["message"])
        self.assertNotIn("belljar", error["traceback"])
        self.assertEqual(self.value_of("import sys\nsys.stdin.read()"), "")

    def test_a_text(self):
        result = self.run_well("import sys\n[input('? '), input(), sys.stdin.read()]", stdin={"text": "ada\nbyron\n1\n2"})
        self.assertEqual((result.value, result.stdout), (["ada", "byron", "1\n2"], "? "))

    def test_is_the_descriptor_too(self):
        result = self.run_well(
            "import subprocess\nsubprocess.run(['cat'], capture_output=True).stdout.decode()", stdin={"text": "deep ü\n"}
        )
        self.assertEqual(result.value, "deep ü\n")

    def test_a_long_text(self):
        self.assertEqual(self.value_of("import sys\nlen(sys.stdin.read())", stdin={"text": "x" * 3_000_000}), 3_000_000)

    def test_is_gone_in_the_next_run(self):
        self.assertEqual(self.value_of("input()", stdin={"text": "one\ntwo\n"}), "one")
        self.assertEqual(self.run_code("input()").error["type"], "EOFError")
        self.assertEqual(self.value_of("import os\nos.read(0, 10)"), {"$bytes": ""})
        self.assertEqual(self.value_of("input()", stdin={"text": "three"}), "three")

    def test_a_descriptor(self):
        ours, theirs = os.pipe()
        self.kernel.start("[input(), input()]", fds=[ours], stdin={"descriptor": True})
        os.close(ours)
        os.write(theirs, b"first\n")
        os.write(theirs, b"second\n")
        os.close(theirs)
        self.assertEqual(self.kernel.finish().value, ["first", "second"])
        self.assertEqual(self.run_code("input()").error["type"], "EOFError")

    def test_descriptors_do_not_pile_up(self):
        count = "import os\nlen(os.listdir('/proc/self/fd'))"
        before = self.value_of(count, stdin={"text": "a"})
        for _ in range(5):
            ours, theirs = os.pipe()
            self.kernel.start("1", fds=[ours, theirs], stdin={"descriptor": True})
            self.kernel.finish()
            os.close(ours)
            os.close(theirs)
        self.assertEqual(self.value_of(count, stdin={"text": "a"}), before)

    def test_live(self):
        self.kernel.start(
            "a = input('first? ')\nprint('got', a)\n[a, input(), __import__('sys').stdin.read()]", stdin={"live": True}
        )
        self.kernel.await_output("first? ")
        self.kernel.send(op="input", data="one\nt", end=False)
        self.kernel.await_output("got one\n")
        self.kernel.send(op="input", data="wo\n", end=False)
        self.kernel.send(op="input", data="rest", end=True)
        self.assertEqual(self.kernel.finish().value, ["one", "two", "rest"])
        self.kernel.send(op="input", data="too late", end=False)
        self.assertEqual(self.run_code("input()").error["type"], "EOFError")

    def test_live_input_can_be_interrupted(self):
        self.kernel.start("print('now')\ninput()", stdin={"live": True})
        self.kernel.await_output("now\n")
        timer = threading.Timer(0.1, self.kernel.interrupt)
        timer.start()
        self.assertTrue(self.kernel.finish().done["interrupted"])
        timer.join()
        self.assert_works()

    def test_getpass(self):
        code = "import getpass, warnings\nwarnings.simplefilter('ignore')\ngetpass.getpass()"
        self.assertEqual(self.value_of(code, stdin={"text": "secret\n"}), "secret")

    def test_a_replaced_stdin(self):
        self.assertEqual(self.value_of("import sys, io\nsys.stdin = io.StringIO('mine\\n')\ninput()"), "mine")
