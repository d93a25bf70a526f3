"""Kernels that a zygote has forked."""

import subprocess

from harness import PYTHON, ZYGOTE, KernelCase, need


# A library that only remembers what it is told, and memory of which a trial can write to some.
LEARNING = """
import ctypes, mmap, os, sys
sys.path.insert(0, sys.argv[1])
from belljar_kernel import pages
PAGE = mmap.PAGESIZE
memory = mmap.mmap(-1, 32 * PAGE, flags=mmap.MAP_PRIVATE)
for page in range(32): memory[page * PAGE] = 7
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
told = []
class Library:
    can_gather = True
    def end_with_parent(self): return ctypes.CDLL(None).prctl(1, 9) == 0
    def __getattr__(self, name):
        def tell(data):
            told.append((name, [*memoryview(data).cast("Q")]))
            return len(data) // 24 if name != "gather" or self.can_gather else 0
        return tell
def learn(trials, early): pages.learn(Library(), trials, early)
"""


class Zygote(KernelCase):
    def setUp(self):
        super().setUp()
        self.kernel = self.forked()

    def forked(self, *modules):
        return self.start_kernel(PYTHON, "-I", str(ZYGOTE), *modules)

    def test_nothing_of_the_prewarming_is_left(self):
        self.assertEqual(self.run_code("_").error["type"], "NameError")
        self.assertEqual(self.value_of("sorted(n for n in globals() if n[:2] != '__')"), [])
        self.assertEqual(
            self.value_of("import sys, linecache\n[sys.argv, [n for n in linecache.cache if 'main' in n]]"),
            [["main.py"], ["main.py", "main.py#2", "main.py#3"]],
        )

    def test_runs_values_and_errors(self):
        result = self.run_code("def f():\n    1 / 0\nprint('a')\nf()")
        self.assertEqual((result.error["type"], result.error["line"], result.stdout), ("ZeroDivisionError", 2, "a\n"))
        self.assertIn('File "main.py", line 2, in f\n    1 / 0\n', result.error["traceback"])
        self.assert_works()

    def test_one_thread_while_idle(self):
        self.assertEqual(self.value_of("import os\nlen(os.listdir('/proc/self/task'))"), 1)

    def test_the_last_run_ends_it(self):
        self.run_code("import sys\nsys.exit(4)", last=True)
        self.assertEqual(self.kernel.wait(), 4)

    def test_random_numbers_differ(self):
        code = """
import random, tempfile, uuid, os
[random.random(), random.Random().random(), uuid.uuid4(), uuid.uuid1().clock_seq, next(tempfile._get_candidate_names()), os.urandom(4)]
"""
        first, second = (self.forked("random", "tempfile", "uuid", "multiprocessing").run(code).value for _ in range(2))
        for one, other in zip(first, second):
            self.assertNotEqual(one, other)

    def test_random_numbers_of_one_zygote_differ(self):
        """Children of the same zygote: forked here by hand, as only the state after the fork counts."""
        need("numpy")
        code = """
import os, sys
sys.path.insert(0, sys.argv[1])
import random, numpy, tempfile, uuid, multiprocessing, belljar_kernel
library = type(sys)('library'); sys.modules['library'] = library
library.generator = numpy.random.default_rng(5); library.old = numpy.random.RandomState(5); library.own = random.Random(5)
next(tempfile._get_candidate_names())
belljar_kernel.prewarm()
def look():
    belljar_kernel.after_fork()
    return [random.random(), float(numpy.random.rand()), float(library.generator.random()), float(library.old.rand()), library.own.random(),
            next(tempfile._get_candidate_names()), bytes(multiprocessing.current_process().authkey).hex()]
seen = []
for _ in range(2):
    r, w = os.pipe()
    if os.fork() == 0:
        os.write(w, repr(look()).encode()); os._exit(0)
    os.close(w); seen.append(eval(os.read(r, 10000))); os.wait()
assert len(seen[0]) == 7
for one, other in zip(*seen): assert one != other, seen
"""
        self.assert_runs(code)

    def assert_runs(self, code):
        command = [PYTHON, "-I", "-c", code, str(ZYGOTE.parent.parent)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_copy_that_is_thrown_away_says_which_pages_are_written_to(self):
        code = f"""{LEARNING}
READ, WRITE, ALL, EARLY = 22, 23, 1, 2
maps = lambda: set(open("/proc/self/maps"))
before, file = maps(), open(sys.executable, "rb")
program = mmap.mmap(file.fileno(), 1 << 21, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
[place] = [int(line.split("-")[0], 16) for line in maps() - before if " r--p " in line]
def using(*pages):
    def trial(tell):
        for page in pages: memory[page * PAGE] = 1
        program[1 << 20]
        tell()
    return trial
learn((using(3, 10, 11, 12), using(3, 10, 11, 14)), using(3, 17))
numbers = dict(told)["need"]
ranges = {{begin: rest for begin, *rest in zip(*(numbers[at::4] for at in range(4)))}}
assert [name for name, _ in told] == ["gather", "share", "gather", "need"], told
for page, length, whose in (3, 1, ALL), (10, 2, ALL), (12, 1, EARLY), (14, 1, EARLY), (17, 1, EARLY):
    assert ranges[start + page * PAGE] == [length * PAGE, WRITE, whose], (page, told)
inside = lambda at: [(use, whose) for first, (length, use, whose) in ranges.items() if first <= at < first + length]
assert not inside(start + 20 * PAGE) and not inside(start), ranges
assert inside(place + (1 << 20)) == [(READ, ALL)] and not inside(place), ranges
"""
        self.assert_runs(code)

    def test_what_goes_over_with_a_fork_and_in_which_pages(self):
        """Pieces of files that copies read much of go over, and all but code goes into large pages, with what has been written to."""
        code = f"""{LEARNING}
libc = ctypes.CDLL(None)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, *[ctypes.c_size_t] * 2, *[ctypes.c_int] * 2, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
file = open(sys.executable, "rb")
def mapped(pages, rights, at=None):
    return libc.mmap(at, pages * PAGE, rights, 0x12 if at else 2, file.fileno(), 0)
def read(at, count):
    for page in range(count): ctypes.c_ubyte.from_address(at + page * PAGE).value
def written(count, advice=None):
    # Between others, so that it is a piece by itself.
    at = libc.mmap(None, 34 * PAGE, 0, 0x22, -1, 0) + PAGE
    libc.mmap(at, 32 * PAGE, 3, 0x32, -1, 0)
    if advice: assert libc.madvise(at, 32 * PAGE, advice) == 0
    for page in range(count): ctypes.c_ubyte.from_address(at + page * PAGE).value = 1
    return at
BLOCK = 512 * PAGE
room = libc.mmap(None, 5 * BLOCK, 0, 0x22, -1, 0)
used, unused, changed, plain = ((room + BLOCK - 1) // BLOCK * BLOCK + number * BLOCK for number in range(4))
for block, rights, count in (used, 5, 300), (unused, 5, 100), (changed, 5, 512), (plain, 1, 512):
    mapped(512, rights, block)
    read(block, count)
mapped(1, 3, changed + BLOCK // 2)
much, little, program = mapped(16, 1), mapped(512, 1), mapped(16, 5)
WIPE_ON_FORK, DONT_FORK = 18, 10
filled, empty, wiped, kept = written(32), written(3), written(32, WIPE_ON_FORK), written(32, DONT_FORK)
def trial(tell):
    read(much, 16); read(little, 2); read(program, 16)
    tell()
rows = lambda numbers, width: {{begin: rest for begin, *rest in zip(*(numbers[at::width] for at in range(width)))}}
for can_gather in True, False:
    told.clear()
    Library.can_gather = can_gather
    learn((trial, trial), trial)
    assert [name for name, _ in told] == ["gather", "share", "gather", *([] if can_gather else ["share"]), "need"], told
    memory, code, constants, *again, needed = (numbers for _, numbers in told)
    assert again in ([], [constants]), told
    memory, code, constants, needed = rows(memory, 3), rows(code, 3), rows(constants, 3), rows(needed, 4)
    assert memory[filled] == [32 * PAGE, 3] and not {{empty, wiped, kept}} & {{*memory}}, memory
    assert memory[used] == [BLOCK, 5] and not {{unused, changed, plain}} & {{*memory}}, (memory, used)
    # These come first, or they would begin somewhere in a large page.
    kinds = [rights for _, rights in memory.values()]
    assert kinds == sorted(kinds, reverse=True), kinds
    assert code[program] == [16 * PAGE, 5] and all(rights == 5 for _, rights in code.values()), code
    assert constants[much] == [16 * PAGE, 1] and all(rights == 1 for _, rights in constants.values()), constants
    assert little in needed and little not in constants, told
    assert not {{much, program}} & {{*needed}}, needed
"""
        self.assert_runs(code)

    def test_a_copy_that_fails_says_nothing(self):
        for ending in "0", "os._exit(0)", "os._exit(3)", "1 / 0", "os.kill(os.getpid(), 9)":
            with self.subTest(ending):
                code = f"""{LEARNING}
fails = lambda tell: exec({ending!r})
works = lambda tell: tell()
learn((works, fails), works)
learn((works, works), fails)
assert {{name for name, _ in told}} == {{"gather"}}, told
"""
                self.assert_runs(code)

    def test_a_copy_that_is_thrown_away_ends_with_its_maker(self):
        code = f"""{LEARNING}
import signal, time
source, sink = os.pipe()
if os.fork() == 0:
    os.close(source)
    def act(tell):
        os.write(sink, b"x")
        time.sleep(60)
    pages.from_copy(Library(), act, 60)
os.close(sink)
assert os.read(source, 1) == b"x"
[maker] = open("/proc/self/task/%d/children" % os.getpid()).read().split()
os.kill(int(maker), signal.SIGKILL)
before = time.monotonic()
assert os.read(source, 1) == b"" and time.monotonic() - before < 20
"""
        self.assert_runs(code)

    def test_what_is_tried_is_a_whole_run(self):
        for last, answers in (True, ["ready", "done", "exit"]), (False, ["ready", "done"]):
            with self.subTest(last=last):
                code = f"""{LEARNING}
import json, belljar_kernel
from belljar_kernel import serving
sent = []
send = serving.Channel.send
serving.Channel.send = lambda channel, text, *more: sent.append(json.loads(text)["op"]) or send(channel, text, *more)
belljar_kernel.prewarm()
sent.clear()
serving.run_once('print(1)', {last}, lambda: os._exit(42 if sent == {answers} else 1))
"""
                command = [PYTHON, "-I", "-c", code, str(ZYGOTE.parent.parent)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                self.assertEqual((done.returncode, done.stdout), (42, "1\n"), done.stderr)

    def test_a_run_is_announced(self):
        self.kernel.send(op="soon")
        self.assertEqual(self.value_of("x = 1\nx"), 1)
        self.run_code("import os\nos.close(1)\nprint('nobody reads this')")
        self.kernel.send(op="soon")
        self.assertEqual(self.run_well("print(x)").stdout, "1\n")

    def test_preloaded_libraries(self):
        need("numpy", "pandas", "matplotlib")
        self.kernel = self.forked("numpy", "pandas", "matplotlib.pyplot")
        self.assertEqual(self.value_of("import pandas as pd\npd.DataFrame({'a': [1]})"), [{"a": 1}])
        self.assertEqual(len(self.run_well("import matplotlib.pyplot as plt\nplt.plot([1]); plt.show()").displays), 1)

    def test_interrupts(self):
        pid = self.value_of("import os\nos.getpid()")
        self.kernel.start("print('go')\nwhile True: pass")
        self.kernel.await_output("go\n")
        import os

        os.kill(pid, 2)
        self.assertTrue(self.kernel.finish().done["interrupted"])
        self.assert_works()
