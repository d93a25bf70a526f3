"""Code that fights the interpreter it runs in: a right answer or a clean end, never a hang, never a broken frame."""

import os
import time

from harness import Ended, KernelCase

LOST = 74


class Survives(KernelCase):
    """The kernel goes on."""

    def goes_on(self, *codes):
        for code in codes:
            with self.subTest(code):
                kernel, self.kernel = self.kernel, self.start_kernel()
                try:
                    self.kernel.run(code)
                    self.assertEqual(self.kernel.run("40 + 2").value, 42)
                    self.assertEqual(self.kernel.run("1 / 0").error["type"], "ZeroDivisionError")
                finally:
                    self.kernel = kernel

    def test_builtins_replaced(self):
        self.goes_on(
            "import builtins\nfor n in ('len', 'isinstance', 'type', 'str', 'dict', 'getattr', 'print', 'repr', 'min', 'BaseException', 'KeyboardInterrupt'): setattr(builtins, n, None)",
            "import builtins\nbuiltins.__dict__.clear()", "__builtins__.__import__ = None", "import builtins\nbuiltins.compile = builtins.exec = builtins.eval = None",
        )  # fmt: skip

    def test_builtins_deleted(self):
        self.goes_on(
            "del __builtins__",
            "__builtins__ = {}",
            "globals()['__builtins__'] = 5",
            "globals().clear()",
            "import sys\nsys.modules['builtins'] = None",
        )

    def test_modules_patched(self):
        self.goes_on(
            "import json, os, sys, io\njson.dumps = json.loads = os.write = os.read = os.getpid = os._exit = None\njson.encoder = None",
            "import _json, _socket, _ast, _signal\nfor m in (_json, _socket, _ast, _signal): m.__dict__.clear()",
            "import sys\nsys.modules.clear()", "import sys\nsys.modules = {}",
            "import sys\nsys.settrace = sys.exc_info = sys.getrecursionlimit = None",
            "import sys\nsys.meta_path.clear(); sys.path_hooks.clear(); sys.path.clear()", "import sys\nsys.path = None\nsys.argv = None",
            "import sys\nfor name in list(sys.modules):\n    if 'belljar' in name: del sys.modules[name]",
        )  # fmt: skip

    def test_tracing(self):
        self.goes_on(
            "import sys\nsys.settrace(lambda *a: 1 / 0)", "import sys\nsys.setprofile(lambda *a: 1 / 0)",
            "import sys, threading\ndef t(*a): return t\nsys.settrace(t); threading.settrace(t); sys.setprofile(t)",
        )  # fmt: skip

    def test_recursion(self):
        self.goes_on(
            "import sys\nfor n in range(1, 300):\n    try: sys.setrecursionlimit(n); break\n    except RecursionError: pass",
            "import sys\nsys.setrecursionlimit(60)\ndef f(): f()\nf()",
            "class A:\n    def __repr__(self): return repr(self)\nA()", "x = []\nfor _ in range(100000): x = [x]\nx",
            "class A:\n    def __getattribute__(self, n): return getattr(self, n)\nA()", "d = {}\nfor _ in range(50000): d = {'d': d}\nd",
        )  # fmt: skip

    def test_signals(self):
        self.goes_on(
            "import signal\nfor s in signal.valid_signals():\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass",
            "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
            "import signal, os\nsignal.signal(signal.SIGUSR1, lambda *_: 1 / 0)\nos.kill(os.getpid(), signal.SIGUSR1)",
            "import signal\nsignal.set_wakeup_fd(-1)\nsignal.signal = signal.getsignal = None",
        )  # fmt: skip

    def test_memory_and_collection(self):
        self.goes_on(
            "import gc\ngc.disable(); gc.set_threshold(0)",
            "import gc\ngc.callbacks.append(lambda *a: 1 / 0)",
            "import gc\nfor o in gc.get_objects():\n    pass",
        )

    def test_directories(self):
        self.goes_on(
            "import os, tempfile\nd = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)",
            "import os\nos.chdir('/')",
            "import os\nos.environ.clear()",
        )

    def test_exceptions_of_every_kind(self):
        self.goes_on(
            "raise BaseException", "raise GeneratorExit", "raise KeyboardInterrupt", "raise StopIteration", "raise SystemExit(object())",
            "class E(BaseException):\n    def __init__(self): self.__cause__ = self\nraise E", "class X(SystemExit):\n    code = property(lambda s: 1 / 0)\nraise X",
            "class S:\n    def __str__(self): 1 / 0\nraise SystemExit(S())", "class E(Exception):\n    __traceback__ = property(lambda s: 1 / 0)\nraise E",
            "class E(SyntaxError):\n    lineno = 'x'; offset = None; filename = 'main.py'; msg = 5; text = b''\nraise E",
        )  # fmt: skip

    def test_failures_that_resist_are_still_known(self):
        for body, kind in [
            ("class E(Exception):\n    __traceback__ = __cause__ = __context__ = property(lambda s: 1 / 0)\nraise E", "E"),
            ("class E(SyntaxError):\n    filename = msg = property(lambda s: 1 / 0)\nraise E", "E"),
            ("class E(Exception):\n    __notes__ = 5\n    args = property(lambda s: 1 / 0)\nraise E", "E"),
        ]:
            self.assertEqual(self.run_code(body).error["type"], kind)
        result = self.run_code("class X(SystemExit):\n    code = property(lambda s: 1 / 0)\nraise X(7)")
        self.assertEqual(result.done["exit_code"], 7)
        result = self.run_code("class S:\n    def __str__(self): 1 / 0\nraise SystemExit(S())")
        self.assertEqual((result.done["exit_code"], result.error), (1, None))

    def test_values_of_every_kind(self):
        self.goes_on(
            "class A:\n    def __repr__(self): raise BaseException\nA()", "class A:\n    __class__ = property(lambda s: 1 / 0)\nA()",
            "class M(type):\n    def __getattribute__(c, n): raise KeyError(n)\nclass A(metaclass=M): pass\nA()",
            "class D(dict):\n    def items(self): return self.items()\nD(a=1)", "class L(list):\n    def __len__(self): return 10 ** 9\nL()",
            "class I(int):\n    def __str__(self): 1 / 0\n    __repr__ = __index__ = __str__\nI(5)", "class F(float):\n    def __sub__(self, o): 1 / 0\nF(1)",
            "class S(str):\n    def __len__(self): return -1\n    def encode(self, *a): 1 / 0\nS('x')", "object.__new__(type('', (), {'__repr__': None}))",
            "globals()", "__builtins__", "import sys\nsys.modules", "class H:\n    __hash__ = None\n    def __eq__(s, o): 1 / 0\n[H()]",
        )  # fmt: skip

    def test_threads(self):
        self.goes_on(
            "import threading, sys\nfor _ in range(5): threading.Thread(target=sys.exit, args=(3,)).start()",
            "import threading\ndef spin():\n    while True: pass\nthreading.Thread(target=spin, daemon=True).start()",
            "import _thread\n_thread.start_new_thread(lambda: 1 / 0, ())", "import threading\nthreading.main_thread = None\nthreading._shutdown = None",
            "import atexit\natexit.register(lambda: 1 / 0)", "import sys\nsys.unraisablehook = sys.excepthook = None",
            "import sys\ndel sys.excepthook, sys.__excepthook__, sys.stdout, sys.stderr, sys.stdin, sys.argv", "import sys\nfor n in [n for n in vars(sys) if n != 'modules']: delattr(sys, n)",
        )  # fmt: skip

    def test_output_closed(self):
        for code in ("import os\nos.close(1); os.close(2); os.close(0)", "import os\nos.closerange(0, 3)"):
            self.run_code(code)
            self.assertEqual(self.value_of("40 + 2"), 42)
            self.assertEqual(self.value_of("input()", stdin={"text": "y"}), "y")

    def test_streams_with_other_methods(self):
        self.goes_on("import sys\nsys.stdout.flush = sys.stderr.write = sys.stdout.write = sys.stderr.flush = lambda *a: 1 / 0")

    def test_names_that_are_not_texts(self):
        self.goes_on(
            "class K:\n    def __init__(self, n): self.n = n\n    def __hash__(self): return hash(self.n)\n    def __eq__(self, o): 1 / 0\nglobals()[K('q')] = 1",
            "import sys\nsys.path_importer_cache[sys.path[0]] = 5", "globals()[5] = 6",
        )  # fmt: skip

    def test_the_channel_set_to_not_block(self):
        for number in range(3):
            result = self.run_well(f"import os\nos.set_blocking(3, False)\n{number}")
            self.assertEqual(result.value, number)
            time.sleep(0.05)

    def test_descriptors_are_not_left_to_children(self):
        code = "import subprocess\nsubprocess.run('ls -l /proc/self/fd | grep -c socket', shell=True, close_fds=False, capture_output=True).stdout.decode()"
        self.assertEqual(self.value_of(code), "0\n")

    def test_huge_texts(self):
        self.assertEqual(self.value_of("x = " + "1 + " * 100 + "1\nx"), 101)
        self.assertEqual(self.value_of("'" + "x" * 5_000_000 + "'\n7"), 7)
        self.assertEqual(self.value_of("\n" * 1_000_000 + "8"), 8)


class Forks(KernelCase):
    def test_a_child_never_comes_back(self):
        for code, out in [
            ("import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint('once each')", "once each\n" * 2),
            (
                "import os, sys\npid = os.fork()\nif pid == 0: sys.exit(5)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
                "5\n",
            ),
            ("import os, sys\npid = os.fork()\nif pid == 0: 1 / 0\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))", "1\n"),
        ]:
            result = self.run_well(code)
            self.assertEqual(result.stdout, out)
            self.assert_works()

    def test_a_child_that_outlives_the_run(self):
        self.run_well("import os, time\nif os.fork() == 0:\n    time.sleep(0.2)\nNone")
        for _ in range(20):
            self.assert_works()
            time.sleep(0.02)

    def test_a_child_with_await(self):
        code = "import os, asyncio\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nawait asyncio.sleep(0)\nprint('x')"
        self.assertEqual(self.run_well(code).stdout, "x\nx\n")
        self.assert_works()

    def test_multiprocessing(self):
        code = "import multiprocessing as m\ndef f(x): return x + 1\nwith m.get_context('fork').Pool(2) as p: r = p.map(f, range(4))\nr"
        self.assertEqual(self.value_of(code), [1, 2, 3, 4])


class Ends(KernelCase):
    """The kernel cannot go on, and ends at once with a code that says so."""

    def test_the_channel_closed(self):
        self.assertEqual(self.ends("import os\nos.close(3)"), LOST)

    def test_everything_closed(self):
        self.assertEqual(self.ends("import os\nos.closerange(0, 4096)\nprint('x')"), LOST)

    def test_something_else_in_its_place(self):
        self.assertEqual(self.ends("import os\nr, w = os.pipe()\nos.dup2(w, 3)"), LOST)
        self.kernel = self.start_kernel()
        self.assertEqual(self.ends("import os\nos.dup2(1, 3)"), LOST)
        self.kernel = self.start_kernel()
        self.assertEqual(self.ends("import os\nos.close(3)\nf = open('/dev/zero')\nassert f.fileno() == 3"), LOST)

    def test_closed_before_a_tool_is_called(self):
        tools = [{"name": "f", "doc": "", "parameters": [], "async": False}]
        self.assertEqual(
            self.ends("import os\nos.close(3)\ntry: f()\nexcept BaseException: pass\nwhile True: pass", tools=tools), LOST
        )

    def test_closed_by_a_thread_while_idle(self):
        self.run_well("""
import os, threading, time
def close():
    while not os.path.exists('idle'): time.sleep(0.01)
    os.close(3)
    os.mkdir('closed')
threading.Thread(target=close).start()
""")
        time.sleep(0.2)
        self.make("idle")
        self.there("closed")
        # The read that is going on keeps the socket alive; what comes next cannot be answered.
        with self.assertRaises(Ended):
            self.kernel.run("1")
        self.assertEqual(self.kernel.wait(), LOST)

    def test_the_sending_half_shut(self):
        code = "import socket\ns = socket.socket(fileno=3)\ns.shutdown(socket.SHUT_RDWR)\ns.detach()\nNone"
        self.assertEqual(self.ends(code), LOST)

    def test_the_process_ends_itself(self):
        self.assertEqual(self.ends("import os\nos._exit(3)"), 3)
        self.kernel = self.start_kernel()
        self.assertEqual(self.ends("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"), -9)
        self.kernel = self.start_kernel()
        self.assertEqual(self.ends("import ctypes\nctypes.string_at(0)"), -11)
        self.kernel = self.start_kernel()
        self.assertEqual(self.ends("import os\nos.execv('/bin/true', ['true'])"), 0)

    def test_forged_frames_are_the_engines_to_judge(self):
        """They arrive as they are, and the kernel's own frame still follows."""
        code = "import os, json\nd = json.dumps({'op': 'done', 'id': 'guess', 'ok': True}).encode()\nos.write(3, len(d).to_bytes(4, 'little') + d)\n5"
        self.kernel.start(code)
        self.assertEqual(self.kernel.next()["id"], "guess")
        self.assertEqual(self.kernel.next()["value"], 5)

    def test_it_does_not_spin_without_an_engine(self):
        before = os.times().children_user
        self.kernel.channel.close()
        self.kernel.wait()
        self.assertLess(os.times().children_user - before, 5)
