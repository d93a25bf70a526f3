"""Functions of the caller."""

import os
import threading
import time

from harness import KernelCase


def tool(name, *parameters, doc="", asynchronous=False):
    return {"name": name, "doc": doc, "parameters": list(parameters), "async": asynchronous}


class Tools(KernelCase):
    def test_a_call_and_its_answer(self):
        def answer(call):
            return {"value": {"sum": sum(call["args"]), "more": call["kwargs"]}}

        result = self.run_well("add(1, 2, scale=[3])", answer, tools=[tool("add")])
        self.assertEqual(result.value, {"sum": 3, "more": {"scale": [3]}})
        self.assertEqual([(call["call"], call["tool"]) for call in result.calls], [(1, "add")])

    def test_a_name_that_the_parser_reads_in_other_characters(self):
        result = self.run_well("\ufb01nd(), find()", lambda _: {"value": 7}, tools=[tool("\ufb01nd")])
        self.assertEqual((result.value, [call["tool"] for call in result.calls]), ([7, 7], ["\ufb01nd"] * 2))
        told = "import inspect\nstr(inspect.signature(find))"
        self.assertEqual(self.run_well(told, tools=[tool("\ufb01nd", "x: int = 5")]).value, "(x: int = 5)")

    def test_calls_count_from_one_in_each_run(self):
        for _ in range(2):
            result = self.run_well("f(); f()", lambda _: {"value": None}, tools=[tool("f")])
            self.assertEqual([call["call"] for call in result.calls], [1, 2])

    def test_the_set_is_replaced(self):
        self.run_well("f(1)", lambda _: {"value": 1}, tools=[tool("f"), tool("g")])
        self.assertEqual(self.run_code("g", tools=[tool("f")]).error["type"], "NameError")
        self.run_well("f = 5", tools=[tool("f")])
        self.assertEqual(self.value_of("f"), 5)

    def test_without_a_set_they_stay(self):
        self.run_well("f(1)", lambda _: {"value": 1}, tools=[tool("f"), tool("g")])
        self.assertEqual(self.run_well("g()", lambda _: {"value": 2}).value, 2)
        self.run_well("globals().clear()")
        self.assertEqual(self.run_well("f()", lambda _: {"value": 3}).value, 3)
        self.assertEqual(self.run_code("g", tools=[]).error["type"], "NameError")

    def test_clearing_globals_does_not_take_them_away(self):
        self.run_well("globals().clear()", tools=[tool("f")])
        self.assertEqual(self.run_well("f()", lambda _: {"value": 9}, tools=[tool("f")]).value, 9)

    def test_what_it_gives(self):
        spec = {**tool("now"), "returns": "dict[str, Thing]"}
        self.assertEqual(self.value_of("import inspect\nstr(inspect.signature(now))", tools=[spec]), "() -> 'dict[str, Thing]'")
        self.assertIn("now() -> int\n", self.run_well("help(now)", tools=[{**tool("now"), "returns": "int"}]).stdout)
        self.assertEqual(self.value_of("str(inspect.signature(now))", tools=[{**tool("now", "a=1"), "returns": "a list of"}]), "(a=1)")

    def test_help_and_signature(self):
        spec = tool("search", "query: str", "limit: int = 5", "*", "where: Place = HERE", doc="Finds things.")
        result = self.run_well("help(search)\nimport inspect\nstr(inspect.signature(search))", tools=[spec])
        self.assertIn("query", result.value)
        self.assertIn("Finds things.", result.stdout)
        spec = tool("search", "query: str", "limit: int = 5", doc="Finds things.")
        result = self.run_well("help(search)\nsearch.__name__, search.__doc__, str(inspect.signature(search))", tools=[spec])
        self.assertIn("search(query: str, limit: int = 5)", result.stdout)
        self.assertEqual(result.value, ["search", "Finds things.", "(query: str, limit: int = 5)"])
        self.run_well("f", tools=[tool("f", "this is not ) python")])

    def test_exceptions(self):
        def answer(call):
            return {"error": {"type": call["args"][0], "message": "said so"}}

        code = """
def kind(name):
    try: f(name)
    except Exception as e: return [type(e).__name__, str(e), isinstance(e, ToolError), type(e).__mro__[1].__name__]
[kind(n) for n in ("ValueError", "FileNotFoundError", "HTTPError", "ToolError", "SystemExit", "UnicodeDecodeError", "StopIteration", "print", "")]
"""
        value = self.run_well(code, answer, tools=[tool("f")]).value
        self.assertEqual(value[0], ["ValueError", "said so", False, "Exception"])
        self.assertEqual(value[1], ["FileNotFoundError", "said so", False, "OSError"])
        self.assertEqual(value[2], ["HTTPError", "said so", True, "ToolError"])
        self.assertEqual(value[3], ["ToolError", "said so", True, "Exception"])
        self.assertEqual(
            [one[:3] for one in value[4:8]],
            [[n, "said so", True] for n in ("SystemExit", "UnicodeDecodeError", "StopIteration", "print")],
        )
        self.assertTrue(value[8][2])

    def test_an_exception_that_is_not_caught(self):
        result = self.run_code("x = 1\nf()", lambda _: {"error": {"type": "RateLimit", "message": "slow down"}}, tools=[tool("f")])
        self.assertEqual((result.error["type"], result.error["message"], result.error["line"]), ("RateLimit", "slow down", 2))
        self.assertNotIn("belljar_kernel", result.error["traceback"])

    def test_arguments_without_a_json_form(self):
        for code in ("f(object())", "f(x=lambda: 1)", "a = []; a.append(a); f(a)"):
            result = self.run_code(code, tools=[tool("f")])
            self.assertEqual((result.error["type"], result.calls), ("TypeError", []), code)
        self.assertEqual(self.run_code("f('x' * (17 << 20))", tools=[tool("f")]).error["type"], "ValueError")
        self.assertEqual(self.run_code("f('\\x01' * (4 << 20))", tools=[tool("f")]).error["type"], "ValueError")
        self.assert_works()

    def test_arguments_are_mapped_like_values(self):
        result = self.run_well(
            "import datetime\nf((1, 2), {3}, b'a', datetime.date(2024, 1, 2), d={1: 2})", lambda _: {"value": 0}, tools=[tool("f")]
        )
        self.assertEqual(result.calls[0]["args"], [[1, 2], [3], {"$bytes": "YQ=="}, "2024-01-02"])
        self.assertEqual(result.calls[0]["kwargs"], {"d": {"1": 2}})

    def test_large_answers(self):
        self.assertEqual(self.run_well("len(f())", lambda _: {"value": "x" * (20 << 20)}, tools=[tool("f")]).value, 20 << 20)

    def test_many_calls(self):
        result = self.run_well("sum(f(i) for i in range(2000))", lambda call: {"value": call["args"][0]}, tools=[tool("f")])
        self.assertEqual(result.value, 1999000)

    def test_from_threads(self):
        code = """
import os
import threading
import time
got = {}
def work(i): got[i] = [f(i) for _ in range(20)]
threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
for t in threads: t.start()
mine = [f('main') for _ in range(20)]
for t in threads: t.join()
all(got[i] == [i] * 20 for i in range(8)) and mine == ['main'] * 20
"""
        self.assertIs(self.run_well(code, lambda call: {"value": call["args"][0]}, tools=[tool("f")]).value, True)

    def test_answers_out_of_order(self):
        code = """
import concurrent.futures as c
with c.ThreadPoolExecutor(4) as pool:
    futures = [pool.submit(f, i) for i in range(4)]
[x.result() for x in futures]
"""
        self.kernel.start(code, tools=[tool("f")])
        calls = [self.kernel.next() for _ in range(4)]
        for call in reversed(calls):
            self.kernel.send(op="answer", call=call["call"], value=call["args"][0] * 10)
        self.assertEqual(self.kernel.finish().value, [0, 10, 20, 30])

    def test_a_thread_that_still_waits_at_the_end_of_the_run(self):
        code = """
import os, threading, time
def wait():
    try: f()
    except RuntimeError as e: log.append(str(e))
log = []
t = threading.Thread(target=wait); t.start()
while not os.path.exists('called'): time.sleep(0.01)
"""
        self.assertEqual(len(self.run_well(code, lambda _: self.make("called"), tools=[tool("f")]).calls), 1)
        self.assertIn("has ended", self.value_of("t.join(); log[0]"))

    def test_outside_of_a_run(self):
        code = """
import os, threading, time
def late():
    while not os.path.exists('between'): time.sleep(0.01)
    try: f()
    except RuntimeError as e: log.append(str(e))
    os.mkdir('tried')
log = []
t = threading.Thread(target=late); t.start()
"""
        self.run_well(code, tools=[tool("f")])
        self.make("between")
        self.there("tried")
        self.assertIn("only while a run is going on", self.value_of("t.join(); log[0]"))

    def test_in_a_forked_process(self):
        code = "import os\npid = os.fork()\nif pid == 0:\n    try: f()\n    except RuntimeError: os._exit(7)\n    os._exit(8)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
        result = self.run_well(code, tools=[tool("f")])
        self.assertEqual((result.value, result.calls), (7, []))

    def test_answers_of_another_run_are_ignored(self):
        self.kernel.start("f()", tools=[tool("f")])
        call = self.kernel.next()
        self.kernel.send(op="answer", call=call["call"], id="another", value="wrong")
        self.kernel.send(op="answer", call=99, value="wrong")
        self.kernel.send(op="answer", call=call["call"], id=call["id"], value="right")
        self.assertEqual(self.kernel.finish().value, "right")


class AsyncTools(KernelCase):
    tools = [tool("get", "x", doc="Gets.", asynchronous=True), tool("put")]

    def test_concurrent_calls(self):
        self.kernel.start("import asyncio\nawait asyncio.gather(*[get(i) for i in range(5)])", tools=self.tools)
        calls = [self.kernel.next() for _ in range(5)]
        for call in reversed(calls):
            self.kernel.send(op="answer", call=call["call"], value=call["args"][0] + 100)
        self.assertEqual(self.kernel.finish().value, [100, 101, 102, 103, 104])

    def test_is_a_coroutine_function(self):
        self.assertIs(self.value_of("import inspect\ninspect.iscoroutinefunction(get)", tools=self.tools), True)

    def test_with_asyncio_run(self):
        code = "import asyncio\nasync def main(): return [await get(1), await get(2)]\nasyncio.run(main())"
        self.assertEqual(self.run_well(code, lambda call: {"value": call["args"][0]}, tools=self.tools).value, [1, 2])

    def test_other_tasks_go_on(self):
        code = "import asyncio\nlog = []\nasync def tick():\n    for i in range(3): log.append(i); await asyncio.sleep(0)\nt = asyncio.create_task(tick())\nx = await get(1)\n[x, log]"
        result = self.run_well(code, lambda _: {"value": "v"}, tools=self.tools)
        self.assertEqual(result.value[0], "v")
        self.assertTrue(result.value[1])

    def test_sync_calls_between_async_ones(self):
        code = "import asyncio\na = asyncio.create_task(get(1))\nawait asyncio.sleep(0)\nb = put(2)\n[await a, b]"
        self.kernel.start(code, tools=self.tools)
        first, second = self.kernel.next(), self.kernel.next()
        self.assertEqual((first["tool"], second["tool"]), ("get", "put"))
        self.kernel.send(op="answer", call=first["call"], value="a")
        self.kernel.send(op="answer", call=second["call"], value="b")
        self.assertEqual(self.kernel.finish().value, ["a", "b"])

    def test_exceptions_and_timeouts(self):
        result = self.run_code("await get(1)", lambda _: {"error": {"type": "KeyError", "message": "k"}}, tools=self.tools)
        self.assertEqual((result.error["type"], result.error["line"]), ("KeyError", 1))
        code = "import asyncio\ntry:\n    await asyncio.wait_for(get(1), 0.05)\nexcept asyncio.TimeoutError:\n    return 'late'"
        self.assertEqual(self.run_well(code, tools=self.tools).value, "late")
        self.assertEqual(self.run_well("await get(5)", lambda call: {"value": call["args"][0]}, tools=self.tools).value, 5)

    def test_interrupted(self):
        self.kernel.start("await get(1)", tools=self.tools)
        self.kernel.next()
        timer = threading.Timer(0.1, self.kernel.interrupt)
        timer.start()
        self.assertTrue(self.kernel.finish().done["interrupted"])
        timer.join()
        self.assertEqual(self.run_well("await get(6)", lambda call: {"value": call["args"][0]}, tools=self.tools).value, 6)

    def test_open_calls_of_tasks_fail_with_the_run(self):
        self.run_well("import asyncio\nt = asyncio.create_task(get(1))\nawait asyncio.sleep(0)", tools=self.tools)
        self.assertEqual(self.run_code("await t", tools=self.tools).error["type"], "RuntimeError")

    def test_arguments_without_a_json_form(self):
        self.assertEqual(self.run_code("await get(object())", tools=self.tools).error["type"], "TypeError")


class Storms(KernelCase):
    """Threads, tools, displays and interrupts all at once: no frame about a run comes after its end, none is broken."""

    tools = (tool("f"), tool("g", asynchronous=True))

    def test_threads_that_never_stop(self):
        self.run_well("""
import os
import threading
import time
go = True
def spam():
    while go:
        try:
            display('x'); f(1)
        except RuntimeError: pass
threads = [threading.Thread(target=spam, daemon=True) for _ in range(3)]
for t in threads: t.start()
""", lambda call: {"value": call["args"]}, tools=list(self.tools))  # fmt: skip
        for number in range(100):
            result = self.run_well(f"f({number})", lambda call: {"value": call["args"]}, tools=list(self.tools))
            self.assertEqual(result.value, [number])
        self.run_well("go = False\nfor t in threads: t.join()", lambda call: {"value": 0}, tools=list(self.tools))

    def test_interrupts_at_any_moment(self):
        codes = ["[f(i) for i in range(20)]", "import asyncio\nawait asyncio.gather(*[g(i) for i in range(20)])"]
        child = os.fork()
        if child == 0:
            try:
                while True:
                    os.kill(self.kernel.pid, 2)
                    time.sleep(0.002)
            finally:
                os._exit(0)
        interrupted = 0
        try:
            for number in range(200):
                answer = lambda call: {"value": call["args"][0], "id": call["id"]}  # noqa: E731
                result = self.kernel.run(codes[number % 2], answer, tools=list(self.tools))
                interrupted += result.done.get("interrupted", False)
                if result.ok:
                    self.assertEqual(result.value, list(range(20)))
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)
        self.assertTrue(interrupted)
        self.assert_works()
