"""The list of modules that may be imported."""

import sys
import unittest

from harness import MAIN, KernelCase


class Imports(KernelCase):
    def allow(self, *names):
        self.kernel.send(op="setup", env=None, imports=list(names), files=True)

    def refused(self, code, name):
        result = self.run_code(code)
        self.assertEqual((result.error or {}).get("type"), "ImportError", (code, result.done))
        self.assertEqual(result.error["message"], f"Import '{name}' not allowed", code)

    def test_only_what_is_listed(self):
        self.allow("json", "math")
        self.assertEqual(self.value_of("import json, math\nfrom json import dumps\njson.loads('[1]') + [math.floor(2.5)]"), [1, 2])
        for code, name in [
            ("import os", "os"), ("import os.path", "os"), ("from os import path", "os"), ("import subprocess as s", "subprocess"),
            ("from os.path import *", "os"), ("__import__('os')", "os"), ("import json, sys", "sys"), ("import no_such_thing", "no_such_thing"),
            ("import importlib", "importlib"), ("import builtins", "builtins"),
        ]:  # fmt: skip
            self.refused(code, name)

    def test_what_they_need_themselves_is_included(self):
        self.allow("asyncio", "dataclasses", "random", "decimal", "statistics", "datetime", "uuid", "tempfile")
        code = "import asyncio, dataclasses, random, decimal, statistics, datetime, uuid, tempfile\nasync def f(): return 1\nasyncio.run(f())"
        self.assertEqual(self.value_of(code), 1)
        self.assertEqual(self.value_of("datetime.datetime.strptime('2024', '%Y').year"), 2024)

    def test_easy_ways_around(self):
        self.allow("json")
        for code in (
            "exec('import os')", "exec('import os', {})", "exec('import os', {'__name__': 'json', '__builtins__': __builtins__})",
            "eval('__import__(\"os\")')", "__builtins__.__import__('os')", "def f():\n    import os\nf()", "class A:\n    import os",
            "__import__('os', {'__name__': 'json'})", "(lambda: __import__('os'))()", "[__import__('os') for _ in [1]]",
        ):  # fmt: skip
            self.refused(code, "os")

    def test_the_safe_list(self):
        self.allow("safe")
        names = "json math datetime asyncio typing re collections itertools functools statistics random string decimal fractions dataclasses enum"
        self.run_well("\n".join(f"import {name}" for name in names.split()) + "\nimport collections.abc")
        for name in (
            "os",
            "sys",
            "subprocess",
            "socket",
            "ctypes",
            "shutil",
            "pathlib",
            "importlib",
            "pickle",
            "threading",
            "gc",
            "inspect",
        ):
            self.refused(f"import {name}", name)

    def test_safe_and_more(self):
        self.allow("safe", "pathlib")
        self.run_well("import json, pathlib")
        self.refused("import os", "os")

    def test_none_at_all(self):
        self.allow()
        self.refused("import json", "json")
        self.assertEqual(self.value_of("1 + 1"), 2)

    def test_parts_of_packages(self):
        self.allow("xml.etree", "os.path")
        self.run_well("import xml.etree.ElementTree as E\nfrom xml import etree\nfrom xml.etree import ElementTree\nimport os.path")
        self.refused("import xml.dom", "xml")
        self.refused("from xml import dom", "xml.dom")

    def test_modules_of_the_workspace_are_code_of_the_user(self):
        (self.workspace / "mine.py").write_text("import json\ndef reach():\n    import os\n    return os")
        (self.workspace / "pack").mkdir()
        (self.workspace / "pack" / "__init__.py").write_text("from . import inner")
        (self.workspace / "pack" / "inner.py").write_text("import json\nx = 3")
        self.allow("json", "mine", "pack")
        self.refused("import mine\nmine.reach()", "os")
        self.assertEqual(self.value_of("import pack\npack.inner.x"), 3)
        (self.workspace / "other.py").write_text("")
        self.refused("import other", "other")

    def test_the_traceback_has_the_line_only(self):
        self.allow("json")
        error = self.run_code("x = 1\nimport os").error
        self.assertEqual((error["line"], error["source"]), (2, "import os"))
        self.assertNotIn("belljar_kernel", error["traceback"])

    def test_the_kernel_goes_on_working(self):
        self.allow("json")
        self.assertEqual(self.value_of("async def f(): return 2\nawait f()"), 2)
        self.assertEqual(self.run_code("1 / 0").error["type"], "ZeroDivisionError")
        self.assertEqual(self.value_of("input()", stdin={"text": "x"}), "x")
        self.assert_works()

    def test_everything_without_a_list(self):
        self.kernel.send(op="setup", env=None, imports=None, files=True)
        self.run_well("import os, sys, subprocess, ctypes")


class Documents(unittest.TestCase):
    def test_the_safe_list_is_the_one_in_the_readme(self):
        sys.path.insert(0, str(MAIN.parent))
        self.addCleanup(sys.path.remove, str(MAIN.parent))
        from belljar_kernel import imports

        text = (MAIN.parent / "README.md").read_text()
        listed = text.split("`safe`: `")[1].split("`")[0].split()
        self.assertEqual(set(listed), imports.SAFE)
