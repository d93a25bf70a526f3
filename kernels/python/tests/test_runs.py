"""State, the value of the last expression, top-level return and await, names and arguments."""

from harness import KernelCase


class State(KernelCase):
    def test_stays_between_runs(self):
        self.run_well("import math\nx = 20\ndef double(y): return 2 * y\nclass P: pass")
        self.assertEqual(self.value_of("double(x) + math.floor(2.5)"), 42)

    def test_what_was_defined_before_a_failure_stays(self):
        self.assertFalse(self.run_code("a = 1\n1 / 0\nb = 2").ok)
        self.assertEqual(self.value_of("a, 'b' in globals()"), [1, False])

    def test_the_namespace_is_a_module_called_main(self):
        self.assertEqual(self.value_of("import sys\n__name__, sys.modules['__main__'].__dict__ is globals()"), ["__main__", True])

    def test_classes_can_be_pickled(self):
        self.run_well("import pickle\nclass Point:\n    def __init__(self, x): self.x = x")
        self.assertEqual(self.value_of("pickle.loads(pickle.dumps(Point(5))).x"), 5)

    def test_dataclasses_and_type_hints_find_their_module(self):
        code = "import dataclasses, typing\n@dataclasses.dataclass\nclass A:\n    x: 'int'\ntyping.get_type_hints(A) == {'x': int}"
        self.assertIs(self.value_of(code), True)

    def test_globals_are_put_in_and_stay(self):
        self.assertEqual(self.value_of("rows[1]['n'] + k", globals={"rows": [{}, {"n": 2}], "k": 3}), 5)
        self.assertEqual(self.value_of("k"), 3)

    def test_globals_have_the_names_that_the_parser_makes_of_them(self):
        names = {"\ufb01": 1, "\u00aab": 2, "e\u0301": 3, "x\u00b2": 4, "\uff43lass": 5}
        self.assertEqual(self.value_of("[\ufb01, fi, \u00aab, ab, e\u0301, \u00e9, globals()['x\u00b2']]", globals=names), [1, 1, 2, 2, 3, 3, 4])
        self.assertEqual(self.value_of("[fi, ab, \u00e9]"), [1, 2, 3])

    def test_globals_with_forms_that_json_lacks(self):
        forms = {
            "b": {"$bytes": "/wA="}, "n": {"$int": str(2**70)}, "f": [{"$float": "inf"}, {"$float": "nan"}],
            "d": {"$dict": [[1, "a"], [[1, [2]], {"$bytes": ""}]]}, "deep": {"x": [{"y": {"$bytes": "YQ=="}}]},
        }
        self.run_well(
            "assert b == b'\\xff\\x00' and n == 2 ** 70 and f[0] == float('inf') and f[1] != f[1]\n"
            "assert d == {1: 'a', (1, (2,)): b''} and deep == {'x': [{'y': b'a'}]}",
            globals=forms,
        )
        odd = [
            {"$bytes": "aGVsbG8_-w=="}, {"$bytes": "!!"}, {"$bytes": "YQ==junk"}, {"$bytes": "YQ"}, {"$int": "1_000"}, {"$int": "0x10"}, {"$int": " 5 "},
            {"$bytes": 5}, {"$bytes": "a"}, {"$int": "x"}, {"$int": 5}, {"$float": "1"}, {"$dict": 5}, {"$dict": [[1]]}, {"$other": [1]}, {"$int": "1", "b": 2},
        ]
        self.assertEqual(self.value_of("[list(each)[0] for each in odd]", globals={"odd": odd}), [list(each)[0] for each in odd])
        self.assertEqual(self.value_of("{'$bytes': 'x'} == k", globals={"k": {"$dict": [["$bytes", "x"]]}}), True)

    def test_clearing_globals_gives_a_fresh_namespace(self):
        self.run_well("x = 1")
        self.run_well("globals().clear()")
        self.assertEqual(self.value_of("print(__name__)\nsorted(n for n in globals() if not n.startswith('__'))"), [])

    def test_arguments_and_names(self):
        result = self.run_well("import sys\nsys.argv", name="job.py", args=["-v", "ü"])
        self.assertEqual(result.value, ["job.py", "-v", "ü"])

    def test_a_file_of_that_name_is_known(self):
        (self.workspace / "main.py").write_text("__file__")
        self.assertEqual(self.value_of("__file__"), str(self.workspace / "main.py"))

    def test_without_a_file_there_is_no_name_of_it(self):
        self.assertEqual(self.run_code("__file__").error["type"], "NameError")

    def test_modules_of_the_workspace_can_be_imported(self):
        (self.workspace / "helper.py").write_text("def answer(): return 42")
        self.assertEqual(self.value_of("import helper\nhelper.answer()"), 42)

    def test_future_imports_hold_for_later_runs(self):
        self.run_well("from __future__ import annotations")
        self.assertEqual(self.value_of("def f(x: Unknown): ...\nf.__annotations__['x']"), "Unknown")

    def test_sources_can_be_inspected(self):
        self.run_well("def first():\n    return 1  # one")
        self.run_well("def second():\n    return 2  # two")
        sources = self.value_of("import inspect\n[inspect.getsource(first), inspect.getsource(second)]")
        self.assertEqual(sources, ["def first():\n    return 1  # one\n", "def second():\n    return 2  # two\n"])

    def test_many_runs_keep_memory_bounded(self):
        for number in range(300):
            self.kernel.run(f"n = {number}")
        self.assertLessEqual(self.value_of("import linecache\nsum('main.py' in name for name in linecache.cache)"), 256)

    def test_environment_and_module_path(self):
        (self.workspace / "lib").mkdir()
        (self.workspace / "lib" / "extra.py").write_text("x = 7")
        env = {"A": "b", "PYTHONPATH": str(self.workspace / "lib")}
        self.kernel.send(op="setup", env=env, imports=None, files=True)
        code = "import os, extra\n[os.environ['A'], os.environ.get('PATH'), os.environ['MPLBACKEND'], extra.x]"
        self.assertEqual(self.value_of(code), ["b", None, "Agg", 7])

    def test_variables_that_come_later(self):
        self.run_well("import os\nos.environ['MINE'] = 'm'")
        self.kernel.send(op="env", env={"A": "b"})
        self.assertEqual(self.value_of("[os.environ['A'], os.environ['MINE'], os.popen('echo $A').read()]"), ["b", "m", "b\n"])
        self.run_well("def broken(*_): raise SystemExit(3)\ntype(os.environ).update = type(os.environ).__setitem__ = broken")
        self.kernel.send(op="env", env={"A": "c"})
        self.assertEqual(self.value_of("os.environ['MINE']"), "m")


class LastExpression(KernelCase):
    def test_is_the_value(self):
        self.assertEqual(self.value_of("x = 1\nx + 1"), 2)

    def test_statements_have_none(self):
        self.assertNotIn("value", self.run_well("x = 1").done)
        self.assertNotIn("value", self.run_well("None").done)
        self.assertNotIn("value", self.run_well("").done)
        self.assertNotIn("value", self.run_well("# nothing\n").done)

    def test_a_semicolon_silences_it(self):
        for code in ("5;", "5 ; # five", "'é' ;", "(5);"):
            self.assertNotIn("value", self.run_well(code).done, code)
        # These end no line, though they are among what `splitlines` splits at.
        for code in ("x = '\u2028';\n5", "x = 1;\x0c\n5", "x = '\x85;';\n'\u2029'\n5"):
            self.assertEqual(self.value_of(code), 5, code)
        self.assertNotIn("value", self.run_well("x = '\u2028\u2028'\n5;").done)
        for code in ("';'", "5 # ;", "x = 1; 5"):
            self.assertIn("value", self.run_well(code).done, code)

    def test_is_kept_under_the_underscore(self):
        self.run_well("6 * 7")
        self.assertEqual(self.value_of("_ + 1"), 43)
        self.run_well("for _ in range(3): pass")
        self.assertEqual(self.value_of("_"), 2)

    def test_a_text_is_a_value_and_a_text_form(self):
        result = self.run_well("'a\\nb'")
        self.assertEqual((result.value, result.text), ("a\nb", "'a\\nb'"))


class Return(KernelCase):
    def test_ends_the_code_with_a_value(self):
        result = self.run_well("print('a')\nreturn 5\nprint('b')")
        self.assertEqual((result.value, result.stdout), (5, "a\n"))

    def test_anywhere_outside_of_functions(self):
        for number, code in enumerate(
            [
                "if True:\n    return N",
                "for x in range(9):\n    if x == 3:\n        return N\n",
                "while True:\n    for y in [1]:\n        while y:\n            return N",
                "try:\n    1 / 0\nexcept ZeroDivisionError:\n    return N\nfinally:\n    z = 1",
                "import contextlib\nwith contextlib.suppress(Exception):\n    return N",
                "try:\n    return 0\nfinally:\n    return N",
                "for x in [1]:\n    break\nelse:\n    return 0\nreturn N",
                "for x in []:\n    return 0\nelse:\n    return N",
                "def f():\n    return 1\nreturn f() + N - 1",
                "if 0: pass\nelif 0: return 0\nelse: return N",
            ]
        ):
            with self.subTest(code):
                self.assertEqual(self.value_of(code.replace("N", str(number + 100))), number + 100)

    def test_can_be_called_off(self):
        off = "while True:\n    try:\n        try:\n            return 1\n        finally:\n            raise KeyError\n    except KeyError:\n        pass\n    {}\n"
        self.assertEqual(self.value_of(off.format("break") + "'after'"), "after")
        self.assertNotIn("value", self.run_well(off.format("break") + "x = 1").done)
        loop = "for i in range(3):\n    try:\n        return 1\n    finally:\n        continue\n'through'"
        self.assertEqual(self.value_of(loop), "through")
        self.assertEqual(self.value_of("for i in range(3):\n    try:\n        return 1\n    finally:\n        break\n[i]"), [0])

    def test_a_loop_in_finally_does_not_end_it_early(self):
        code = (
            "log = []\ntry:\n    return log\nfinally:\n    for i in range(3):\n        if i > 5: return 0\n    log.append('whole')"
        )
        self.assertEqual(self.value_of(code), ["whole"])

    def test_contexts_see_no_exception(self):
        code = "seen = []\nclass C:\n    def __enter__(self): pass\n    def __exit__(self, *e): seen.append(e[0])\nwith C():\n    return seen"
        self.assertEqual(self.value_of(code), [None])

    def test_the_last_expression_counts_if_nothing_returned(self):
        self.assertEqual(self.value_of("if 0: return 1\n2"), 2)

    def test_module_semantics_stay(self):
        code = """
"the docstring"
from __future__ import annotations
from math import *
global counter
counter: int = 1
exec("made = 2")
values = [(last := x) for x in range(4)]
class A:
    names = [counter for _ in range(2)]
def f():
    global counter
    counter += 1
    return [counter + x for x in values]
f()
del values
assert locals() is globals()
if counter == 2:
    return [__doc__, floor(2.5), made, last, A.names, __annotations__, f.__qualname__, counter]
"""
        value = self.value_of(code)
        self.assertEqual(value, ["the docstring", 2, 2, 3, [1, 1], {"counter": "int"}, "f", 2])
        self.assertEqual(self.value_of("counter, made, A.__name__"), [2, 2, "A"])

    def test_nothing_of_it_is_left_in_the_namespace(self):
        self.run_well("for x in [1]:\n    if x: return 1")
        self.assertEqual(self.value_of("[name for name in globals() if '<' in name]"), [])

    def test_other_misplaced_statements_are_still_errors(self):
        for code, word in [
            ("return 1\nbreak", "'break' outside loop"),
            ("if 1:\n    continue\nreturn 1", "'continue' not properly in loop"),
            ("class A:\n    return 1", "'return' outside function"),
            ("return (yield 1)", "'yield' outside function"),
        ]:
            error = self.run_code(code).error
            self.assertEqual((error["type"], error["message"]), ("SyntaxError", word), code)

    def test_with_match(self):
        code = "match [1, 2]:\n    case [a, b]:\n        return a + b\nreturn 0"
        if self.value_of("import sys\nsys.version_info >= (3, 10)"):
            self.assertEqual(self.value_of(code), 3)

    def test_a_very_long_chain_of_elif(self):
        chain = "if x == 0: return 0\n" + "".join(f"elif x == {n}: return {n}\n" for n in range(1, 150))
        self.assertEqual(self.value_of(f"x = 149\n{chain}"), 149)


class Await(KernelCase):
    def test_outside_of_functions(self):
        code = "import asyncio\nasync def f(): await asyncio.sleep(0); return 5\nawait f()"
        self.assertEqual(self.value_of(code), 5)

    def test_other_asynchronous_forms(self):
        self.run_well("async def count(n):\n    for i in range(n): yield i")
        self.assertEqual(self.value_of("[x async for x in count(3)]"), [0, 1, 2])
        self.assertEqual(self.value_of("total = 0\nasync for x in count(4): total += x\ntotal"), 6)
        self.run_well("class C:\n    async def __aenter__(self): return 7\n    async def __aexit__(self, *e): pass")
        self.assertEqual(self.value_of("async with C() as c:\n    return c + 1"), 8)
        self.assertEqual(self.value_of("c"), 7)

    def test_tasks_live_on(self):
        self.run_well(
            "import asyncio\nlog = []\nasync def tick():\n    for i in range(3): log.append(i); await asyncio.sleep(0.01)"
        )
        self.run_well("task = asyncio.create_task(tick())\nawait asyncio.sleep(0)")
        self.assertEqual(self.value_of("await task\nlog"), [0, 1, 2])

    def test_each_run_gives_tasks_one_turn(self):
        self.run_well("import asyncio\nlog = []\nasync def tick():\n    while True: log.append(1); await asyncio.sleep(0)")
        self.run_well("task = asyncio.create_task(tick())\nawait asyncio.sleep(0)")
        first = self.value_of("len(log)")
        self.assertEqual(self.value_of("len(log)"), first + 1)

    def test_asyncio_run_works_without_await(self):
        self.assertEqual(self.value_of("import asyncio\nasync def f(): return 3\nasyncio.run(f())"), 3)
        self.assertEqual(self.value_of("await f()"), 3)

    def test_tasks_are_made_without_await(self):
        self.run_well("import asyncio\nlog = []\nasync def tick(n):\n    for i in range(n): log.append(i); await asyncio.sleep(0.01)\n    return log")
        self.run_well("tasks = [asyncio.create_task(tick(2))]\ntasks.append(asyncio.ensure_future(tick(0)))\nboth = asyncio.gather(*tasks)")
        self.assertEqual(self.value_of("(await both)[0]"), [0, 1])
        self.assertEqual(self.value_of("asyncio.get_running_loop()\n[n for n in range(2)]"), [0, 1])
        result = self.run_code("x = 1\nasyncio.create_task(tick(0)); 1 / 0")
        self.assertEqual((result.error["type"], result.error["line"]), ("ZeroDivisionError", 2))
        self.assertNotIn("asyncio/", result.error["traceback"])
        self.assertEqual(self.run_code("asyncio.create_task(tick(0)); raise SystemExit(4)").done["exit_code"], 4)
        self.assertEqual(self.value_of("def later(): return asyncio.create_task(tick(0))\nasync def all(): return await later()\nasyncio.run(all())"), [0, 1])
        self.kernel.start("asyncio.get_running_loop()\nprint('go', flush=True)\nwhile True: pass")
        self.kernel.await_output("go")
        self.kernel.interrupt()
        self.assertTrue(self.kernel.finish().done["interrupted"])
        self.assertEqual(self.value_of("log"), [0, 1])
        result = self.run_code("import asyncio\nasyncio.create_task(tick(0))", last=True)
        self.assertEqual(result.error["message"], "no running event loop")

    def test_a_failure_has_the_line(self):
        result = self.run_code("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    raise ValueError('x')\n\nawait f()")
        self.assertEqual((result.error["type"], result.error["line"]), ("ValueError", 4))
        self.assertNotIn("asyncio/", result.error["traceback"])
        self.assertIn("line 6, in <module>", result.error["traceback"])

    def test_exit_and_failing_tasks(self):
        self.assertEqual(self.run_code("import asyncio, sys\nawait asyncio.sleep(0)\nsys.exit(4)").done["exit_code"], 4)
        code = "async def bad(): sys.exit(5)\nt = asyncio.create_task(bad())\nawait asyncio.sleep(1000)"
        self.assertEqual(self.run_code(code).done["exit_code"], 5)
        self.assertEqual(self.value_of("await asyncio.sleep(0, 6)"), 6)

    def test_a_cancelled_run(self):
        result = self.run_code("import asyncio\nasyncio.current_task().cancel()\nawait asyncio.sleep(1)")
        self.assertEqual(result.error["type"], "asyncio.exceptions.CancelledError")
        self.assertFalse(result.done.get("interrupted"))

    def test_a_loop_that_was_closed_is_replaced(self):
        self.run_well("import asyncio\nawait asyncio.sleep(0)\nloop = asyncio.get_running_loop()")
        self.run_well("loop.close()")
        self.assertEqual(self.value_of("await asyncio.sleep(0, 1)"), 1)
