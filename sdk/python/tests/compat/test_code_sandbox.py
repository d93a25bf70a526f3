"""CodeSandbox: its document's examples, and what it says besides."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from datetime import datetime
from typing import Any, Optional

import pytest
from reading import Document, parameters

from belljar.compat import _output
from belljar.compat.code_sandbox import AutoDebuggerIntegration, CodeSandbox, ExecutionResult, ResourceLimits

FAILING = "raise ValueError('Test error')"


@pytest.fixture
def text(document: Callable[[str], Document]) -> Document:
    made = document("code_sandbox")
    # What the document's earlier examples have made or imported.
    made.names.update(
        json=json,
        sandbox=CodeSandbox(),
        ResourceLimits=ResourceLimits,
        CodeSandbox=CodeSandbox,
        AutoDebuggerIntegration=AutoDebuggerIntegration,
        code="print('code')",
    )
    return made


def test_simple_execution(text: Document, capsys: pytest.CaptureFixture[str]) -> None:
    text.run("Simple Execution")
    shown = capsys.readouterr().out.splitlines()
    assert shown[:3] == ["Success: True", "Output: Hello, World!", ""]
    assert re.fullmatch(r"Time: \d+\.\d{3}s", shown[3])


def test_with_resource_limits(text: Document) -> None:
    names = text.run("With Resource Limits")
    assert names["result"].success and names["result"].stdout == "code\n"


def test_error_handling_and_debugging(text: Document, capsys: pytest.CaptureFixture[str]) -> None:
    names = text.run("Error Handling and Debugging", error_code=FAILING)
    assert capsys.readouterr().out == "Error type: python_exception\n"
    assert names["debug_report"]["status"] == "failure"


def test_codesandbox_class(text: Document) -> None:
    title = "CodeSandbox Class"
    assert text.signature(title, "sandbox.execute") == parameters(CodeSandbox.execute)
    assert parameters(CodeSandbox.__init__) == {"default_limits": None, "use_docker_api": True}
    sandbox = CodeSandbox(default_limits=None, use_docker_api=True)
    assert sandbox.default_limits == ResourceLimits()
    assert text.signature(title, "sandbox.get_resource_usage") == parameters(CodeSandbox.get_resource_usage)
    assert sandbox.list_supported_languages()
    assert sandbox.get_execution_history(limit=None) == []
    sandbox.cleanup_all_containers()


def test_resourcelimits_class(text: Document) -> None:
    assert text.signature("ResourceLimits Class", "ResourceLimits") == parameters(ResourceLimits.__init__)


def test_executionresult_class(text: Document) -> None:
    result = CodeSandbox().execute("print(1)", "python")
    text.run("ExecutionResult Class", result=result, Optional=Optional, datetime=datetime)
    assert (result.success, result.exit_code, result.stdout, result.stderr) == (True, 0, "1\n", "")
    assert isinstance(result.execution_time, float) and result.execution_time > 0
    assert (result.timeout, result.error_message) == (False, None)
    assert isinstance(result.container_id, str) and isinstance(result.timestamp, datetime)
    assert result.language is not None and result.language.startswith("python (Python 3.")
    assert [field.name for field in fields(ExecutionResult)] == [
        "success",
        "exit_code",
        "stdout",
        "stderr",
        "execution_time",
        "timeout",
        "error_message",
        "container_id",
        "language",
        "resource_usage",
        "output_files",
        "memory_used",
        "cpu_percent",
        "timestamp",
    ]
    assert result.resource_usage is not None and result.resource_usage["memory_usage"] > 0
    assert result.memory_used is not None and result.cpu_percent is not None


def test_example_1_python_data_processing(text: Document) -> None:
    assert text.run("Example 1: Python Data Processing")["output"] == {"sum": 15}


def test_example_2_multiple_files(text: Document) -> None:
    result = text.run("Example 2: Multiple Files")["result"]
    assert result.stdout == "Config: {'setting': 'value'}, Helper: 42\n"


def test_example_3_error_handling(text: Document, capsys: pytest.CaptureFixture[str]) -> None:
    names = text.run("Example 3: Error Handling")
    assert capsys.readouterr().out == "Error type: python_exception\nIs error: True\n"
    assert names["analysis"]["exception"] == "ValueError: Test error"


def test_example_4_timeout_enforcement(text: Document) -> None:
    began = time.monotonic()
    result = text.run("Example 4: Timeout Enforcement")["result"]
    assert 2 <= time.monotonic() - began < 9
    assert "2" in result.error_message and result.success is False


def test_with_autodebugger(text: Document) -> None:
    report = text.run("With AutoDebugger")["debug_report"]
    assert report["status"] == "success" and report["output"] == {"stdout": "code\n", "stderr": ""}


def test_with_learning_system(text: Document) -> None:
    class LearningSystem:
        def __init__(self) -> None:
            self.seen: list[tuple[str, str]] = []

        def record_success(self, code: str, output: str) -> None:
            self.seen.append(("success", output))

        def record_failure(self, code: str, output: str) -> None:
            self.seen.append(("failure", output.strip().splitlines()[-1]))

    system = LearningSystem()
    text.run("With Learning System", learning_system=system)
    text.run("With Learning System", code=FAILING)
    assert system.seen == [("success", "code\n"), ("failure", "ValueError: Test error")]


def test_with_code_review(text: Document) -> None:
    class Scanner:
        def is_safe(self, code: str) -> bool:
            return True

    class History:
        def __init__(self) -> None:
            self.kept: list[ExecutionResult] = []

        def record(self, result: ExecutionResult) -> None:
            self.kept.append(result)

    history = History()
    text.run("With Code Review", security_scanner=Scanner(), history=history)
    assert [result.stdout for result in history.kept] == ["code\n"]


def test_security_hardening(text: Document) -> None:
    names = text.run("Security Hardening")
    assert names["result"].stdout == "code\n"


def test_performance_optimization(text: Document) -> None:
    names = text.run("Performance Optimization", snippets=["print(1)", "print(2)"])
    assert names["result"].stdout == "2\n"
    assert len(names["sandbox"].get_execution_history()) == 2


def test_limits() -> None:
    assert ResourceLimits(timeout_seconds=60).timeout_seconds == 30
    assert ResourceLimits(memory_limit="1g").memory_swap == "1g"
    for wrong in (
        {"timeout_seconds": 0},
        {"cpu_quota": 0},
        {"cpu_period": -1},
        {"cpu_shares": 1},
        {"pids_limit": 0},
        {"memory_limit": "much"},
        {"memory_limit": "512m", "memory_swap": "256m"},
    ):
        with pytest.raises(ValueError):
            ResourceLimits(**wrong)


def test_limits_reach_the_sandbox() -> None:
    limits = ResourceLimits(memory_limit="100m", cpu_quota=50_000, cpu_period=100_000, pids_limit=20)
    sandbox = CodeSandbox(default_limits=limits)
    code = """
import os
children = 0
try:
    while children < 50:
        if os.fork() == 0:
            import time; time.sleep(5); os._exit(0)
        children += 1
except OSError: pass
print(children < 20)
"""
    assert sandbox.execute(code, "python").stdout == "True\n"
    spent = sandbox.execute("import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass", "python")
    assert spent.cpu_percent is not None and spent.cpu_percent < 75
    full = sandbox.execute("x = bytearray(200 << 20); print('all')", "python")
    assert (full.success, full.exit_code, full.stdout) == (False, 137, "")
    assert full.error_message is not None and "memory" in full.error_message
    roomy = ResourceLimits(memory_limit="300m")
    assert sandbox.execute("x = bytearray(200 << 20); print('all')", "python", limits=roomy).stdout == "all\n"


def test_shares_divide_what_there_is() -> None:
    cores = os.cpu_count() or 1
    # At the same time, however long either takes to start, and each could have all of it.
    begin = time.time() + 6
    code = f"""
import os, time
for _ in range({cores.bit_length()}):
    os.fork()
time.sleep(max(0, {begin} - time.time()))
while time.time() < {begin + 4}: pass
"""

    def spent(shares: int) -> float:
        limits = ResourceLimits(cpu_quota=cores * 100_000, cpu_shares=shares, pids_limit=100)
        usage = CodeSandbox().execute(code, "python", limits=limits).resource_usage
        assert usage is not None
        return float(usage["cpu_time_ms"])

    with ThreadPoolExecutor() as threads:
        little, much = threads.map(spent, [64, 4096])
    assert much > 2 * little
    with pytest.raises(ValueError, match="cpu_shares"):
        ResourceLimits(cpu_shares=262_145)


def test_what_is_safe_by_default() -> None:
    sandbox = CodeSandbox()
    code = """
import socket
try: open('/usr/x', 'w')
except OSError: print('read-only')
open('/tmp/x', 'w').write('x')
try: socket.create_connection(('192.0.2.1', 80), 1)
except OSError: print('no network')
print([l.split()[1] for l in open('/proc/self/status') if l.startswith('CapEff')])
"""
    assert sandbox.execute(code, "python").stdout == "read-only\nno network\n['0000000000000000']\n"


def test_network() -> None:
    code = "import urllib.request as u; u.urlopen('http://192.0.2.1')"
    assert "HTTP Error 403" in CodeSandbox().execute(code, "python", network_enabled=True).stderr
    assert "urlopen error" in CodeSandbox().execute(code, "python").stderr
    off = CodeSandbox().execute(code, "python", network_enabled="false")  # type: ignore[arg-type]
    assert "urlopen error" in off.stderr


def test_a_writable_root() -> None:
    code = "open('/usr/x', 'w').write('x'); print(open('/usr/x').read())"
    assert CodeSandbox().execute(code, "python", read_only=False).stdout == "x\n"


def test_environment_and_files() -> None:
    code = "import os; print(os.environ['NAME'], sorted(os.listdir('/sandbox/sub')), os.getcwd())"
    files = {"sub/a.txt": "a", "sub/b.txt": "b"}
    result = CodeSandbox().execute(code, "python", env_vars={"NAME": "value"}, files=files)
    assert result.stdout == "value ['a.txt', 'b.txt'] /sandbox\n"
    for path in ("../x", "/etc/x"):
        refused = CodeSandbox().execute("print(1)", "python", files={path: "x"})
        assert (refused.success, refused.exit_code) == (False, -1)
        assert refused.error_message is not None and path in refused.error_message


def test_the_code_s_own_file_is_in_nobody_s_way() -> None:
    # `doctest` imports `code`, a module that a file of that name would be taken for.
    once = CodeSandbox().execute("print('once')\nimport doctest, code; print(code.__file__[:5])", "python")
    assert (once.stdout, once.output_files) == ("once\n/usr/\n", {})
    files = {"main.py": "n = 7", "main1.py": "n = 8", "code.py": "n = 9"}
    own = CodeSandbox().execute("import main, main1, code; print(main.n, main1.n, code.n)", "python", files=files)
    assert (own.stdout, own.output_files) == ("7 8 9\n", {})
    script = CodeSandbox().execute("cat main.sh", "bash", files={"main.sh": "given"})
    assert script.stdout == "given"


def test_files_that_were_written_come_back() -> None:
    code = "open('out.csv', 'w').write('a,b\\n'); open('/sandbox/given.txt', 'a').write('!')"
    result = CodeSandbox().execute(code, "python", files={"given.txt": "x", "left.txt": "y"})
    assert result.output_files == {"out.csv": "a,b\n", "given.txt": "x!"}
    assert AutoDebuggerIntegration.create_debug_report(result)["output_files"] == result.output_files


def test_input() -> None:
    result = CodeSandbox().execute_with_input("print(input(), input())", "python", "one\ntwo\n")
    assert result.stdout == "one two\n"
    limited = CodeSandbox().execute_with_input(
        "import time; time.sleep(9)", "python", "x", limits=ResourceLimits(timeout_seconds=1)
    )
    assert limited.exit_code == 124


def test_tests() -> None:
    sandbox = CodeSandbox()
    code = "def add(a, b): return a + b"
    good = sandbox.execute_tests(code, "assert add(1, 2) == 3\nprint('passed')", "python")
    assert good.success and good.stdout == "passed\n"
    bad = sandbox.execute_tests(code, "assert add(1, 2) == 4", "python", limits=ResourceLimits(timeout_seconds=5))
    assert not bad.success and "AssertionError" in bad.stderr


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python3", "print('hi')"),
        ("JavaScript", "console.log('hi')"),
        ("js", "console.log('hi')"),
        ("bash", "echo hi"),
        ("sh", "echo hi"),
        ("ruby", "puts 'hi'"),
    ],
)
def test_languages(language: str, code: str) -> None:
    assert CodeSandbox().execute(code, language).stdout == "hi\n"


@pytest.mark.parametrize(
    ("language", "code", "told"),
    [
        ("rust", 'fn main() { println!("1"); }', "rust (Rust "),
        ("TS", "const one: number = 1; console.log(one)", "ts ("),
        ("c++", '#include <cstdio>\nint main() { puts("1"); }', "c++ ("),
        ("php", "<?php echo 1;", "php (PHP "),
        ("node", "setTimeout(() => console.log(1), 1)", "javascript (Node.js "),
        ("py", "print(1)", "python (Python "),
    ],
)
def test_languages_that_are_not_in_the_list(language: str, code: str, told: str) -> None:
    result = CodeSandbox().execute(code, language)
    assert (result.success, result.stdout.strip()) == (True, "1"), result
    assert str(result.language).startswith(told)


@pytest.mark.parametrize(
    ("tests", "passes"),
    [
        ("def test_sum():\n    assert add(1, 2) == 3", True),
        ("def test_sum():\n    assert add(1, 2) == 4", False),
        ("async def test_sum():\n    assert add(1, 2) == 4", False),
        ("class TestSum:\n    def test_it(self):\n        assert add(1, 2) == 4", False),
        (
            "import unittest\nclass Sums(unittest.TestCase):\n    def test_it(self):\n        self.assertEqual(add(1, 2), 4)",
            False,
        ),
        (
            "import unittest\nclass Sums(unittest.TestCase):\n    def test_it(self):\n        self.assertEqual(add(1, 2), 3)",
            True,
        ),
    ],
)
def test_tests_for_a_runner_are_run(tests: str, passes: bool) -> None:
    result = CodeSandbox().execute_tests("def add(a, b):\n    return a + b", tests, "python")
    assert (result.success, "AssertionError" in result.stderr) == (passes, not passes), result


@pytest.mark.parametrize(
    "tests",
    [
        "def test_once():\n    print('once')\ntest_once()",
        "import unittest\nclass Once(unittest.TestCase):\n    def test_it(self):\n        print('once')\n"
        "if __name__ == '__main__':\n    unittest.main()",
        "def test_once(capsys):\n    print('never')\nprint('once')",
    ],
)
def test_tests_that_run_themselves_are_run_once(tests: str) -> None:
    result = CodeSandbox().execute_tests("pass", tests, "python")
    assert (result.success, result.stdout) == (True, "once\n"), result


def test_go() -> None:
    code = 'package main\nimport "fmt"\nfunc main() { fmt.Println("hi") }'
    assert CodeSandbox().execute(code, "go").stdout == "hi\n"


def test_the_list_of_languages() -> None:
    listed = {each["language"]: each for each in CodeSandbox().list_supported_languages()}
    assert len(listed) == 8
    for name, runtime, image in (
        ("python", "Python 3.11", "python:3.11-slim"),
        ("javascript", "Node.js 18", "node:18-alpine"),
        ("bash", "Bash 5", "ubuntu:22.04"),
        ("ruby", "Ruby 3.2", "ruby:3.2-alpine"),
        ("go", "Go 1.21", "golang:1.21-alpine"),
    ):
        assert (listed[name]["runtime"], listed[name]["image"]) == (runtime, image)
        assert set(listed[name]) == {"language", "runtime", "extension", "image", "description"}
    assert listed["python"]["extension"] == ".py"
    unknown = CodeSandbox().execute("x", "cobol")
    assert unknown.success is False
    assert unknown.error_message is not None and unknown.error_message.startswith("Unsupported language: cobol")


def test_a_language_that_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    awk = {
        "image": "alpine:3",
        "extension": ".awk",
        "command": lambda file: ["awk", "-f", file],
        "runtime_name": "awk",
        "description": "For lines",
    }
    monkeypatch.setitem(CodeSandbox.LANGUAGE_CONFIGS, "awk", awk)
    sandbox = CodeSandbox()
    result = sandbox.execute_with_input("{ print $2 }", "awk", "one two\n")
    assert (result.stdout, result.language) == ("two\n", "awk (awk)"), result
    assert {
        "language": "awk",
        "runtime": "awk",
        "extension": ".awk",
        "image": "alpine:3",
        "description": "For lines",
    } in (sandbox.list_supported_languages())
    # One that is there may be changed.
    changed = {**CodeSandbox.LANGUAGE_CONFIGS["python"], "command": ["python3", "-O", "{file}"]}
    monkeypatch.setitem(CodeSandbox.LANGUAGE_CONFIGS, "python", changed)
    assert sandbox.execute("print(__debug__)", "python").stdout == "False\n"
    given = sandbox.execute("import main; print(main.n)", "python", files={"main.py": "n = 7"})
    assert given.stdout == "7\n"


def test_output_is_whole_or_says_that_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = CodeSandbox()
    code = "import sys\nfor n in range(400_000):\n    print(n)\nprint('x' * 3_000_000, file=sys.stderr)"
    result = sandbox.execute(code, "python")
    assert result.stdout.splitlines() == [str(n) for n in range(400_000)]
    assert result.stderr == "x" * 3_000_000 + "\n"
    monkeypatch.setattr(_output, "MOST", 1000)
    cut = sandbox.execute("print('x' * 5000)", "python").stdout
    assert cut == "x" * 1000 + "\n[cut: more than 1000 bytes were printed]\n"


def test_exit_codes() -> None:
    assert CodeSandbox().execute("import sys; sys.exit(7)", "python").exit_code == 7
    assert CodeSandbox().execute("kill -9 $$", "bash").exit_code == 137


def test_history() -> None:
    sandbox = CodeSandbox()
    results = [sandbox.execute(f"print({n})", "python") for n in range(3)]
    history = sandbox.get_execution_history()
    assert [entry["container_id"] for entry in history] == [result.container_id for result in results]
    assert set(history[0]) == {"timestamp", "language", "success", "exit_code", "execution_time", "container_id"}
    assert history[0]["language"] == "python" and history[0]["success"] is True
    assert [len(sandbox.get_execution_history(limit)) for limit in (2, 3, 4, 0, -1)] == [2, 3, 3, 0, 0]
    assert sandbox.get_execution_history(limit=2)[-1]["container_id"] == results[-1].container_id
    usage = sandbox.get_resource_usage(str(results[0].container_id))
    assert usage is not None and set(usage) >= {"memory_usage", "cpu_percent", "timestamp"}
    assert sandbox.get_resource_usage("unknown") is None


WRONG: list[dict[str, Any]] = [
    {"memory_limit": 536870912},
    {"memory_limit": None},
    {"memory_swap": 1},
    {"timeout_seconds": "5"},
    {"cpu_quota": "1"},
    {"pids_limit": True},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_limits_of_other_types(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}: .* is not accepted; give a"):
        ResourceLimits(**wrong)


def test_options_of_other_types_are_told() -> None:
    wrong: list[dict[str, Any]] = [{"files": ["a"]}, {"env_vars": ["A=1"]}, {"limits": {"memory_limit": "1g"}}]
    for options in wrong:
        told = CodeSandbox().execute("print(1)", "python", **options)
        assert not told.success and f"{next(iter(options))}: " in str(told.error_message)
        assert "is not accepted; give " in str(told.error_message)


def test_what_is_refused_is_told_and_remembered() -> None:
    sandbox = CodeSandbox()
    results = [
        sandbox.execute("x", "cobol"),
        sandbox.execute(" \n", "python"),
        sandbox.execute(None, "python"),  # type: ignore[arg-type]
        sandbox.execute("print(1)", None),  # type: ignore[arg-type]
        sandbox.execute("print(1)", "python", network_enabled="perhaps"),  # type: ignore[arg-type]
        sandbox.execute_tests("x = 1", None, "python"),  # type: ignore[arg-type]
        sandbox.execute_with_input(b"print(1)", "python", ""),  # type: ignore[arg-type]
    ]
    for result in results:
        assert (result.success, result.exit_code, result.stdout) == (False, -1, "")
        assert result.error_message
        assert AutoDebuggerIntegration.analyze_error(result)["error_type"] == "sandbox_error"
    names = ["cobol", "python", "python", "None", "python", "python", "python"]
    assert [entry["language"] for entry in sandbox.get_execution_history()] == names
    assert not any(entry["success"] for entry in sandbox.get_execution_history())


def test_cleanup_ends_what_runs() -> None:
    sandbox = CodeSandbox()
    results: list[ExecutionResult] = []
    code = "import time; print('started', flush=True); time.sleep(25)"
    thread = threading.Thread(target=lambda: results.append(sandbox.execute(code, "python")))
    thread.start()
    began = time.monotonic()
    while thread.is_alive() and time.monotonic() - began < 10:
        sandbox.cleanup_all_containers()
        time.sleep(0.2)
    thread.join()
    assert time.monotonic() - began < 15
    assert results[0].success is False and results[0].timeout is False


def test_debug_reports() -> None:
    late = ExecutionResult(False, 124, "part", "", 5.0, True, error_message="Timed out", language="python")
    report = AutoDebuggerIntegration.create_debug_report(late)
    assert (report["status"], report["error_type"], report["error_message"]) == ("failure", "timeout", "Timed out")
    broken = ExecutionResult(False, 1, "", "error output", 0.5, False, error_message="Test error")
    assert AutoDebuggerIntegration.create_debug_report(broken)["error_type"] == "execution_error"
    good = AutoDebuggerIntegration.create_debug_report(ExecutionResult(True, 0, "out", "", 0.5, False))
    assert set(good) == {
        "status",
        "exit_code",
        "execution_time",
        "timestamp",
        "language",
        "container_id",
        "output",
        "resource_usage",
    }
    json.dumps(good)


def test_analyses() -> None:
    def analysis(**given: Any) -> dict[str, Any]:
        values: dict[str, Any] = {"success": False, "exit_code": 1, "stdout": "", "stderr": ""} | given
        return AutoDebuggerIntegration.analyze_error(
            ExecutionResult(execution_time=0.1, **({"timeout": False} | values))
        )

    assert analysis(success=True, exit_code=0) == {"is_error": False, "error_type": "unknown"}
    late = analysis(timeout=True, exit_code=124)
    assert late["error_type"] == "timeout" and late["suggestion"]
    assert analysis(stderr="Some error output")["error_type"] == "execution_failure"
    sandbox = analysis(exit_code=0, error_message="no daemon")
    assert (sandbox["error_type"], sandbox["error"]) == ("sandbox_error", "no daemon")
    assert analysis(stderr="SyntaxError: of another language", language="ruby (Ruby 3.2)")["error_type"] == (
        "execution_failure"
    )
    broken = CodeSandbox().execute("def f(:\n    pass", "python")
    told = AutoDebuggerIntegration.analyze_error(broken)
    assert (told["error_type"], told["exception"]) == ("python_exception", "SyntaxError: invalid syntax")
    indented = AutoDebuggerIntegration.analyze_error(CodeSandbox().execute("if 1:\nx = 1", "python"))
    assert indented["exception"].startswith("IndentationError: expected an indented block")
    exits = AutoDebuggerIntegration.analyze_error(CodeSandbox().execute("raise SystemExit('no')", "python"))
    assert exits == {"is_error": True, "error_type": "execution_failure"}
    traced = analysis(stderr='Traceback (most recent call last):\n  File "x"\nValueError: a: b\n')
    assert (traced["error_type"], traced["exception"]) == ("python_exception", "ValueError: a: b")
    code = "try:\n    1 / 0\nexcept Exception:\n    raise ValueError('first\\nsecond: third\\n\\nlast')"
    several = AutoDebuggerIntegration.analyze_error(CodeSandbox().execute(code, "python"))
    assert several["exception"] == "ValueError: first"
