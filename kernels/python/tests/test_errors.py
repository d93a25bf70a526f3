"""Type, message, traceback, place and causes of failures."""

import sys

from harness import PYTHON, KernelCase


class Errors(KernelCase):
    def error(self, code, **fields):
        result = self.run_code(code, **fields)
        self.assertFalse(result.ok)
        return result.error

    def test_an_exception(self):
        error = self.error("x = 1\ndef f(y):\n    return y / 0\n\nf(x)")
        self.assertEqual((error["type"], error["message"], error["line"]), ("ZeroDivisionError", "division by zero", 3))
        self.assertEqual(error["source"], "    return y / 0")
        self.assertIn('  File "main.py", line 5, in <module>\n    f(x)\n', error["traceback"])
        self.assertIn("    return y / 0\n", error["traceback"])
        self.assertNotIn("belljar", error["traceback"])
        self.assertTrue(error["traceback"].startswith("Traceback (most recent call last):\n"))

    def test_the_column_and_the_carets(self):
        if PYTHON != sys.executable or sys.version_info < (3, 11):
            return
        error = self.error("é = {}\nprint(é['a'] + 1)")
        self.assertEqual((error["line"], error["column"]), (2, 7))
        self.assertIn("\n    print(é['a'] + 1)\n          ~^^^^^\n", error["traceback"])

    def test_the_traceback_is_on_stderr_too(self):
        result = self.run_code("print('out')\n1 / 0")
        self.assertEqual(result.stderr, result.error["traceback"])

    def test_classes_of_the_code_have_their_qualified_names(self):
        error = self.error("class A:\n    class Bad(Exception): pass\nraise A.Bad('no')")
        self.assertEqual((error["type"], error["message"]), ("A.Bad", "no"))
        self.assertEqual(self.error("import json\njson.loads('{')")["type"], "json.decoder.JSONDecodeError")

    def test_lines_are_those_of_the_interpreter(self):
        error = self.error("text = 'a\u2028b\x0c\x1c\x85c'\n1 / 0")
        self.assertEqual((error["line"], error["source"]), (2, "1 / 0"))
        self.assertIn("line 2, in <module>\n    1 / 0\n", error["traceback"])
        self.assertEqual(self.error("x = 1\rx = 2\r\n1 / 0")["source"], "1 / 0")
        error = self.error("x = '\u2028\u2028'\nbreak\nreturn 1")
        self.assertEqual((error["type"], error["line"]), ("SyntaxError", 2))
        self.assertIn("    break\n", error["traceback"])

    def test_syntax_errors_that_are_found_late_show_their_line(self):
        for code, line in [("x = 1\nbreak", "break"), ("class A:\n    return 5", "return 5"), ("\nnonlocal x", "nonlocal x")]:
            error = self.error(code)
            self.assertEqual((error["type"], error["line"]), ("SyntaxError", 2), code)
            self.assertIn(f'  File "main.py", line 2\n    {line}\n', error["traceback"])

    def test_a_function_of_an_earlier_run(self):
        self.run_well("def f():\n    raise KeyError('first')")
        error = self.error("# second\n# text\nf()")
        self.assertEqual((error["line"], error["source"]), (3, "f()"))
        self.assertIn("File \"main.py\", line 2, in f\n    raise KeyError('first')\n", error["traceback"])

    def test_in_a_library(self):
        error = self.error("import json\njson.loads('[1,')", name="work.py")
        self.assertEqual((error["line"], error["source"]), (2, "json.loads('[1,')"))
        self.assertIn('File "work.py", line 2', error["traceback"])
        self.assertIn("decoder.py", error["traceback"])

    def test_causes(self):
        error = self.error("try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('b') from e")
        self.assertEqual(error["causes"], [{"type": "KeyError", "message": "'a'"}])
        self.assertIn("direct cause", error["traceback"])
        error = self.error("try:\n    {}['a']\nexcept KeyError as e:\n    1 / 0")
        self.assertEqual([cause["type"] for cause in error["causes"]], ["KeyError"])
        error = self.error("try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError from None")
        self.assertEqual(error["causes"], [])

    def test_chains_without_end(self):
        self.assertLessEqual(
            len(self.error("a = KeyError(1); b = KeyError(2)\na.__cause__ = b; b.__cause__ = a\nraise a")["causes"]), 2
        )
        long = "e = None\nfor i in range(50000):\n    n = ValueError(i); n.__cause__ = e; e = n\nraise e"
        error = self.error(long)
        self.assertEqual(len(error["causes"]), 16)
        self.assertLess(len(error["traceback"]), 100_000)
        self.assertEqual(self.value_of("n = 0\nwhile e: e = e.__cause__; n += 1\nn"), 50000)

    def test_syntax(self):
        error = self.error("x = 1\ny = (2 +\nz = 3")
        self.assertEqual(error["type"], "SyntaxError")
        self.assertIn('File "main.py", line', error["traceback"])
        self.assertNotIn("Traceback", error["traceback"])
        error = self.error("ä = 1\nif ä\n    pass")
        self.assertEqual((error["line"], error["column"], error["source"]), (2, 5, "if ä"))
        self.assertIn("    if ä\n        ^", error["traceback"])
        self.assertEqual(self.error("if 1:\npass")["type"], "IndentationError")
        self.assertEqual(self.error("if 1:\n\tx\n        y")["type"], "TabError")

    def test_syntax_of_other_texts(self):
        error = self.error("x = 1\ncompile('a b', 'other.py', 'exec')")
        self.assertEqual((error["type"], error["line"]), ("SyntaxError", 2))

    def test_texts_that_cannot_be_compiled(self):
        self.assertIn(self.error("x = '\0'")["type"], ("ValueError", "SyntaxError"))
        self.assertEqual(self.error("x = '\ud800'")["type"], "UnicodeEncodeError")
        self.assertIn(self.error("(" * 5000)["type"], ("SyntaxError", "MemoryError", "RecursionError"))
        self.assertIn(self.error("-" * 200_000 + "1")["type"], ("RecursionError", "MemoryError", "SyntaxError"))
        self.assert_works()

    def test_recursion(self):
        error = self.error("def f(n):\n    return f(n + 1)\nf(0)")
        self.assertEqual(error["type"], "RecursionError")
        self.assertIn("more times]", error["traceback"])
        self.assert_works()

    def test_memory(self):
        error = self.error("x = bytearray(1 << 62)")
        self.assertEqual((error["type"], error["line"]), ("MemoryError", 1))

    def test_exit(self):
        for code, expected, ok in [
            ("sys.exit()", 0, True),
            ("sys.exit(0)", 0, True),
            ("sys.exit(3)", 3, False),
            ("raise SystemExit('gone')", 1, False),
            ("exit(2)", 2, False),
            ("sys.exit(True)", 1, False),
            # Of what does not fit into an exit status, what a process would make of it.
            ("sys.exit(-1)", 255, False),
            ("sys.exit(300)", 44, False),
            ("sys.exit(512)", 0, True),
            ("sys.exit(2**70)", 255, False),
        ]:
            result = self.run_code(f"import sys\n{code}")
            self.assertEqual((result.done["exit_code"], result.ok, result.error), (expected, ok, None), code)
        self.assertEqual(self.run_code("import sys; sys.exit('sorry')").stderr, "sorry\n")
        self.assert_works()

    def test_texts_that_fail(self):
        for body in ("raise KeyError", "return 5", "return self.__str__()", "import sys; sys.exit(1)"):
            error = self.error(f"class E(Exception):\n    def __str__(self): {body}\n    __repr__ = __str__\nraise E")
            self.assertEqual((error["type"], error["line"]), ("E", 4), body)
            self.assertIn("main.py", error["traceback"])

    def test_a_message_of_a_gigabyte_is_cut(self):
        error = self.error("raise ValueError('x' * (20 << 20))")
        self.assertLess(len(error["message"]), 100_000)
        self.assertLess(len(error["traceback"]), 400_000)

    def test_notes_and_groups(self):
        if PYTHON != sys.executable or sys.version_info < (3, 11):
            return
        error = self.error("e = ValueError('v')\ne.add_note('look here')\nraise e")
        self.assertIn("look here", error["traceback"])
        error = self.error("raise ExceptionGroup('several', [ValueError(1), TypeError(2)])")
        self.assertEqual(error["type"], "ExceptionGroup")
        self.assertIn("| TypeError: 2", error["traceback"])

    def test_surrogates_in_messages(self):
        error = self.error("raise ValueError('a\\ud800b')")
        self.assertEqual(error["message"], "a�b")

    def test_an_excepthook_of_the_code(self):
        result = self.run_code("import sys\nsys.excepthook = lambda t, e, tb: print('hook', t.__name__)\n1 / 0")
        self.assertEqual((result.stdout, result.stderr), ("hook ZeroDivisionError\n", ""))

    def test_an_excepthook_that_fails(self):
        result = self.run_code("import sys\ndef hook(*_):\n    raise KeyError('hook')\nsys.excepthook = hook\n1 / 0")
        said = result.stderr
        self.assertTrue(said.startswith("Error in sys.excepthook:\nTraceback (most recent call last):\n"), said)
        self.assertIn('File "main.py", line 3, in hook\n', said)
        self.assertTrue(said.endswith("KeyError: 'hook'\n\nOriginal exception was:\n" + result.error["traceback"]), said)

    def test_broken_traceback_module(self):
        code = "import traceback, linecache\ntraceback.TracebackException = None\nlinecache.cache = None\n1 / 0"
        error = self.error(code)
        self.assertEqual((error["type"], error["line"]), ("ZeroDivisionError", 4))
        self.assertIn('File "main.py", line 4, in <module>\n    1 / 0\n', error["traceback"])

    def test_objects_of_a_failed_run_end(self):
        self.run_well("log = []\nclass Big:\n    def __del__(self): log.append('freed')")
        self.error("def f():\n    big = Big()\n    1 / 0\nf()")
        self.assertEqual(self.value_of("log"), ["freed"])

    def test_warnings_about_what_the_kernel_lets_go_of(self):
        self.run_well("async def waits(number): return number\nwaits(1)")
        self.assertEqual(self.run_well("1 + 1", name="next.py").stderr, "next.py: RuntimeWarning: coroutine 'waits' was never awaited\n")
        said = self.run_code("value = waits(2)\ndel value\nraise ValueError(waits(3))").stderr
        self.assertIn("main.py:2: RuntimeWarning: coroutine 'waits' was never awaited\n  del value\n", said)
        said += self.run_code("1").stderr
        self.assertNotIn("belljar_kernel", said)

    def test_warnings_show_the_line(self):
        result = self.run_well("import warnings\nwarnings.warn('careful')")
        self.assertIn("main.py:2: UserWarning: careful\n  warnings.warn('careful')", result.stderr)

    def test_unprintable_class_names(self):
        code = "class M(type):\n    __module__ = property(lambda s: 1 / 0)\n    __qualname__ = 5\nclass E(Exception, metaclass=M): pass\nraise E('x')"
        self.assertFalse(self.run_code(code).ok)
        self.assert_works()

    def test_in_a_thread(self):
        (self.workspace / "main.py").write_text("another\nfile\nof that\nname")
        self.run_well("1")
        code = "import threading\ndef f():\n    1 / 0\nt = threading.Thread(target=f, name='worker'); t.start(); t.join()"
        stderr = self.run_well(code).stderr
        self.assertTrue(stderr.startswith("Exception in thread worker:\nTraceback (most recent call last):\n"), stderr)
        self.assertIn('  File "main.py", line 3, in f\n    1 / 0\n', stderr)
        self.assertTrue(stderr.endswith("ZeroDivisionError: division by zero\n"), stderr)


class Names(KernelCase):
    """What is printed about the code calls it as it was called, and has the lines of the right text."""

    def setUp(self):
        super().setUp()
        self.run_well("import logging, traceback, warnings")
        self.run_well("def old():\n    warnings.warn('old')  # the warning\n    return 1 / 0  # the failure")

    def test_of_warnings(self):
        self.assertEqual(self.run_well("warnings.warn('new')").stderr, "main.py:1: UserWarning: new\n  warnings.warn('new')\n")
        said = self.run_code("old()").stderr
        self.assertTrue(said.startswith("main.py:2: UserWarning: old\n  warnings.warn('old')  # the warning\n"), said)
        own = "warnings.formatwarning = lambda message, *_: f'own: {message}\\n'\nwarnings.warn('x')"
        self.assertEqual(self.run_well(own).stderr, "own: x\n")

    def test_of_tracebacks_that_the_code_prints(self):
        for how in ("traceback.print_exc()", "logging.exception('x')", "warnings.sys.stderr.write(traceback.format_exc())"):
            said = self.run_well(f"try:\n    old()\nexcept ZeroDivisionError:\n    {how}").stderr
            self.assertIn('  File "main.py", line 3, in old\n    return 1 / 0  # the failure\n', said)
            self.assertIn('  File "main.py", line 2, in <module>\n    old()\n', said)
            self.assertNotIn("#2", said)

    def test_in_the_debugger(self):
        said = self.run_well("x = 1\nbreakpoint()\ny = 2", stdin={"text": "c\n"}).stdout
        self.assertTrue(said.startswith("> main.py(3)<module>()\n-> y = 2\n(Pdb) "), said)
        said = self.run_code("import pdb\npdb.run('old()')", stdin={"text": "b old\nc\nn\nc\n"}).stdout
        self.assertIn("> main.py(3)old()\n-> return 1 / 0  # the failure\n", said)

    def test_of_files_stay(self):
        (self.workspace / "helper.py").write_text("import warnings\ndef f():\n    warnings.warn('here', stacklevel=1)\n    1 / 0\n")
        said = self.run_well("import helper\ntry:\n    helper.f()\nexcept ZeroDivisionError:\n    traceback.print_exc()").stderr
        self.assertIn(f"{self.workspace}/helper.py:3: UserWarning: here\n", said)
        self.assertIn(f'  File "{self.workspace}/helper.py", line 4, in f\n    1 / 0\n', said)
