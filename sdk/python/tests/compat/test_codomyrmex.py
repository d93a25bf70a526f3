"""codomyrmex's sandbox functions: all that its document names."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from reading import parameters

from belljar.compat import codomyrmex
from belljar.compat.codomyrmex import (
    DEFAULT_DOCKER_ARGS,
    SUPPORTED_LANGUAGES,
    ExecutionLimits,
    ExecutionMonitor,
    MetricsCollector,
    ResourceMonitor,
    check_docker_available,
    cleanup_temp_files,
    execute_code,
    execute_with_limits,
    prepare_code_file,
    prepare_stdin_file,
    resource_limits_context,
    run_code_in_docker,
    sandbox_process_isolation,
    validate_language,
    validate_session_id,
    validate_timeout,
)

KEYS = {"stdout", "stderr", "exit_code", "execution_time", "status", "error_message"}


def test_the_arguments_of_docker() -> None:
    assert DEFAULT_DOCKER_ARGS == [
        "--network=none",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--read-only",
        "--memory=256m",
        "--memory-swap=256m",
        "--cpus=0.5",
        "--pids-limit=50",
    ]


def test_signatures() -> None:
    assert list(parameters(run_code_in_docker)) == [
        "language",
        "code_file_path",
        "temp_dir",
        "stdin_file",
        "timeout",
        "session_id",
    ]
    assert list(parameters(execute_with_limits)) == ["language", "code", "limits", "stdin", "session_id"]
    assert list(parameters(sandbox_process_isolation)) == ["language", "code", "limits", "stdin"]
    assert list(parameters(execute_code)) == ["language", "code", "stdin", "timeout", "session_id"]
    assert list(parameters(prepare_code_file)) == ["code", "language"]
    assert list(parameters(prepare_stdin_file)) == ["stdin", "temp_dir"]


def test_limits() -> None:
    assert parameters(ExecutionLimits.__init__) == {
        "time_limit": 30,
        "memory_limit": 256,
        "cpu_limit": 0.5,
        "max_output_chars": 100_000,
    }
    ExecutionLimits(time_limit=300, memory_limit=1, cpu_limit=4.0, max_output_chars=1000)
    for wrong in (
        {"time_limit": 0},
        {"time_limit": 301},
        {"memory_limit": 0},
        {"cpu_limit": 0},
        {"cpu_limit": 4.5},
        {"cpu_limit": float("nan")},
        {"max_output_chars": 999},
        {"time_limit": "5"},
        {"memory_limit": None},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ExecutionLimits(**wrong)


def test_files_are_prepared_and_removed() -> None:
    temp_dir, name = prepare_code_file("print(1)", "python")
    assert not os.path.isabs(name) and name.endswith(".py")
    assert Path(temp_dir, name).read_text() == "print(1)"
    assert Path(temp_dir).stat().st_mode & 0o77 == 0
    assert prepare_stdin_file(None, temp_dir) is None
    assert prepare_stdin_file("", temp_dir) is None
    given = prepare_stdin_file("input", temp_dir)
    assert given is not None and Path(given).read_text() == "input"
    cleanup_temp_files(temp_dir)
    assert not Path(temp_dir).exists()
    cleanup_temp_files(temp_dir)
    with pytest.raises(ValueError, match="cobol"):
        prepare_code_file("x", "cobol")


def test_code_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ValueError, match="surrogates"):
        prepare_code_file("'\ud800'", "python")
    assert list(tmp_path.iterdir()) == []


def test_code_of_a_file() -> None:
    temp_dir, name = prepare_code_file("import helper; print(helper.n, input())", "python")
    try:
        Path(temp_dir, "helper.py").write_text("n = 7")
        stdin = prepare_stdin_file("given\n", temp_dir)
        result = run_code_in_docker("python", name, temp_dir, stdin, timeout=10)
        again = run_code_in_docker("python", os.path.join(temp_dir, name), temp_dir, stdin)
        assert again["stdout"] == result["stdout"]
    finally:
        cleanup_temp_files(temp_dir)
    assert set(result) >= KEYS
    assert result["stdout"] == "7 given\n"
    assert (result["status"], result["exit_code"], result["error_message"]) == ("success", 0, None)
    assert 0 < result["execution_time"] < 10


def test_a_file_runs_under_its_own_name_and_in_its_own_place(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    code = "import sibling, os, sys; print(sibling.n, __file__, sys.argv[0], os.getcwd(), os.listdir('src'))"
    (tmp_path / "src" / "prog.py").write_text(code)
    (tmp_path / "src" / "sibling.py").write_text("n = 7")
    result = run_code_in_docker("python", "src/prog.py", str(tmp_path))
    shown = result["stdout"].split(" ", 4)
    assert shown[:4] == ["7", "/sandbox/src/prog.py", "/sandbox/src/prog.py", "/sandbox"], result
    assert "prog.py" in shown[4]
    (tmp_path / "run.sh").write_text("echo $0; ls")
    result = run_code_in_docker("bash", "run.sh", str(tmp_path))
    assert result["stdout"] == "/sandbox/run.sh\nrun.sh\nsrc\n"
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "hi.c").write_text('#include <stdio.h>\nint main(void) { puts("hi"); }')
    assert run_code_in_docker("c", "c/hi.c", str(tmp_path))["stdout"] == "hi\n"


def test_the_code_s_own_file_is_taken_for_no_module() -> None:
    code = "print('once')\nimport doctest"
    assert execute_code("python", code)["stdout"] == "once\n"
    temp_dir, name = prepare_code_file(code, "python")
    try:
        assert run_code_in_docker("python", name, temp_dir)["stdout"] == "once\n"
    finally:
        cleanup_temp_files(temp_dir)


def test_files_elsewhere_are_not_read(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret.py").write_text("print('secret')")
    (inside / "link.py").symlink_to(tmp_path / "secret.py")
    (inside / "a.py").write_text("import os; print(os.listdir('.'))")
    for path in ("../secret.py", str(tmp_path / "secret.py"), "link.py"):
        result = run_code_in_docker("python", path, str(inside))
        assert result["status"] == "setup_error"
        assert "secret" not in result["stdout"]
    assert run_code_in_docker("python", "a.py", str(inside), str(tmp_path / "secret.py"))["status"] == "setup_error"
    assert "link.py" not in run_code_in_docker("python", "a.py", str(inside))["stdout"]


def test_the_document_s_constraints_hold() -> None:
    code = """
import os, socket
try: open('/usr/x', 'w')
except OSError as e: print('read-only', e.errno)
try: socket.create_connection(('192.0.2.1', 80), 1)
except OSError as e: print('no network')
children = 0
try:
    while children < 100:
        if os.fork() == 0:
            import time; time.sleep(5); os._exit(0)
        children += 1
except OSError: pass
print('processes', children < 50)
"""
    result = execute_code("python", code)
    assert result["stdout"].splitlines()[0].startswith("read-only")
    assert result["stdout"].splitlines()[1:] == ["no network", "processes True"]


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "print('hi')"),
        ("javascript", "console.log('hi')"),
        ("bash", "echo hi"),
        ("c", '#include <stdio.h>\nint main(void) { puts("hi"); }'),
    ],
)
def test_languages(language: str, code: str) -> None:
    assert execute_code(language, code)["stdout"] == "hi\n"


def test_languages_by_name() -> None:
    assert set(SUPPORTED_LANGUAGES) == {"python", "javascript", "java", "cpp", "c", "go", "rust", "bash"}
    assert validate_language("python") and not validate_language("cobol")
    unknown = execute_code("cobol", "x")
    assert unknown["status"] == "setup_error" and "cobol" in unknown["error_message"]
    assert execute_code("python", "")["status"] == "setup_error"


def test_failures_are_told() -> None:
    failed = execute_code("python", "import sys; print('x'); sys.exit(3)")
    assert (failed["status"], failed["exit_code"], failed["stdout"]) == ("execution_error", 3, "x\n")
    assert "3" in failed["error_message"]
    raised = execute_code("python", "1 / 0")
    assert (raised["status"], raised["exit_code"]) == ("execution_error", 1)
    assert "ZeroDivisionError" in raised["stderr"]
    late = execute_code("python", "print('before', flush=True)\nwhile True: pass", timeout=5)
    assert (late["status"], late["stdout"]) == ("timeout", "before\n")
    assert "5" in late["error_message"] and late["exit_code"] == -1
    wrong = execute_code("c", "int main( {")
    assert wrong["status"] == "execution_error" and "error" in wrong["stderr"]


def test_a_timeout_ends_only_its_own() -> None:
    other: dict[str, Any] = {}

    def run_other() -> None:
        other.update(execute_code("python", "import time; time.sleep(1.7); print('alive')"))

    thread = threading.Thread(target=run_other)
    thread.start()
    assert execute_code("python", "while True: pass", timeout=1)["status"] == "timeout"
    thread.join()
    assert other["stdout"] == "alive\n"


def test_sessions_are_kept() -> None:
    name = "compat-test"
    try:
        assert execute_code("python", "x = 20", session_id=name)["status"] == "success"
        assert execute_code("python", "print(x + 1)", session_id=name)["stdout"] == "21\n"
        assert "NameError" in execute_code("python", "print(x)")["stderr"]
        assert "NameError" in execute_code("python", "print(x)", session_id="another")["stderr"]
        limited = execute_with_limits("python", "print(x * 2)", ExecutionLimits(), session_id=name)
        assert limited["stdout"] == "40\n"
        assert execute_code("python", "print(input())", stdin="in\n", session_id=name)["stdout"] == "in\n"
    finally:
        codomyrmex.close_session(name)
        codomyrmex.close_session("another")
    assert "NameError" in execute_code("python", "print(x)", session_id=name)["stderr"]
    codomyrmex.close_session(name)


def test_a_session_that_did_not_come_about_may_come_later() -> None:
    name = "compat-late"
    try:
        refused = execute_with_limits("python", "x = 1", ExecutionLimits(memory_limit=1 << 40), session_id=name)
        assert refused["status"] == "setup_error"
        assert execute_code("python", "x = 1", session_id=name)["status"] == "success"
        assert execute_code("python", "print(x)", session_id=name)["stdout"] == "1\n"
    finally:
        codomyrmex.close_session(name)


def test_what_is_no_language_or_no_time_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    wrong: Any = "5"
    for told in (
        execute_code("python", "1", timeout=wrong),
        run_code_in_docker("python", "a.py", str(tmp_path), timeout=wrong),
    ):
        assert told["status"] == "setup_error" and "timeout: '5' is not accepted" in told["error_message"]
    wrong = ["python"]
    for told in (
        execute_code(wrong, "1"),
        execute_with_limits(wrong, "1", ExecutionLimits()),
        run_code_in_docker(wrong, "a.py", str(tmp_path)),
    ):
        assert told["status"] == "setup_error" and "is not supported" in told["error_message"]


def test_session_names() -> None:
    assert validate_session_id("a_B-9") == "a_B-9"
    for wrong in (None, 123, "a b", "../x", "x" * 65, "a\n"):
        assert validate_session_id(wrong) is None  # type: ignore[arg-type]
    # No name, no session.
    execute_code("python", "x = 1", session_id="")
    assert "NameError" in execute_code("python", "x", session_id="")["stderr"]


def test_timeouts() -> None:
    assert [validate_timeout(n) for n in (None, 0, 1, 300, 500)] == [30, 1, 1, 300, 300]


def test_measured_usage() -> None:
    code = "import time\nx = bytearray(60 << 20)\nend = time.monotonic() + 0.5\n"
    code += "while time.monotonic() < end or time.process_time() < 1: pass"
    limits = ExecutionLimits(time_limit=10, memory_limit=128, cpu_limit=0.8)
    result = execute_with_limits("python", code, limits)
    assert result["status"] == "success"
    usage = result["resource_usage"]
    assert set(usage) >= {
        "execution_time_seconds",
        "memory_start_mb",
        "memory_peak_mb",
        "cpu_samples",
        "cpu_average_percent",
        "cpu_peak_percent",
    }
    assert 60 < usage["memory_peak_mb"] <= 129
    assert 0.5 <= usage["execution_time_seconds"] < 10
    assert 10 < usage["cpu_average_percent"] <= 110
    assert usage["cpu_peak_percent"] >= usage["cpu_average_percent"]
    assert usage["cpu_samples"] >= 1
    assert result["limits_applied"] == {
        "time_limit_seconds": 10,
        "memory_limit_mb": 128,
        "cpu_limit_cores": 0.8,
        "max_output_chars": 100_000,
    }


def test_memory_is_limited() -> None:
    result = sandbox_process_isolation("python", "x = bytearray(200 << 20)", ExecutionLimits(memory_limit=64))
    assert result["status"] == "execution_error"
    assert "memory" in result["error_message"]
    assert set(result) >= KEYS | {"resource_usage", "limits_applied"}
    # The code itself may live on, and end well, when what it started was ended.
    code = "import subprocess as s; s.run(['python3', '-c', 'x = bytearray(200 << 20)'])"
    part = sandbox_process_isolation("python", code, ExecutionLimits(memory_limit=64))
    assert (part["status"], part["exit_code"]) == ("execution_error", 137)


def test_limits_that_were_applied_are_told() -> None:
    limits = ExecutionLimits(memory_limit=1, cpu_limit=4)
    applied = sandbox_process_isolation("bash", "echo", limits)["limits_applied"]
    assert applied["memory_limit_mb"] == 4
    assert applied["cpu_limit_cores"] == min(4, os.cpu_count() or 1)
    name = f"applied-{os.getpid()}"
    try:
        execute_with_limits("python", "1", ExecutionLimits(memory_limit=64, cpu_limit=0.25), session_id=name)
        later = execute_with_limits("python", "1", ExecutionLimits(memory_limit=128), session_id=name)
        assert (later["limits_applied"]["memory_limit_mb"], later["limits_applied"]["cpu_limit_cores"]) == (64, 0.25)
    finally:
        codomyrmex.close_session(name)


def test_isolated_runs_share_nothing() -> None:
    limits = ExecutionLimits(time_limit=5)
    sandbox_process_isolation("python", "open('left.txt', 'w').write('x')", limits)
    code = "import os; print(os.path.exists('left.txt'), input())"
    result = sandbox_process_isolation("python", code, limits, stdin="given\n")
    assert result["stdout"] == "False given\n"


def test_output_is_cut() -> None:
    result = execute_code("python", "print('ä' * 250_000); import sys; print('e' * 250_000, file=sys.stderr)")
    assert result["stdout"] == "ä" * 100_000
    assert result["stderr"] == "e" * 100_000
    short = execute_with_limits("python", "print('x' * 5000)", ExecutionLimits(max_output_chars=1000))
    assert short["stdout"] == "x" * 1000


def test_limits_of_a_context_hold_within_it() -> None:
    code = "import time; time.sleep(30); print('done')"
    with resource_limits_context(ExecutionLimits(time_limit=8, memory_limit=64)) as limits:
        assert limits.time_limit == 8
        assert execute_code("python", code)["status"] == "timeout"
        assert execute_code("python", "x = bytearray(100 << 20)")["status"] == "execution_error"
        with resource_limits_context(ExecutionLimits(memory_limit=200)):
            assert execute_code("python", "x = bytearray(100 << 20)")["status"] == "success"
        assert execute_code("python", "x = bytearray(100 << 20)")["status"] == "execution_error"
    assert execute_code("python", "x = bytearray(100 << 20)")["status"] == "success"


def test_limits_of_a_context_hold_for_files(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import time; time.sleep(float(input())); print('done')")
    (tmp_path / "long").write_text("30")
    (tmp_path / "short").write_text("2")
    assert parameters(run_code_in_docker)["timeout"] == 30
    with resource_limits_context(ExecutionLimits(time_limit=1)):
        told = run_code_in_docker("python", "a.py", str(tmp_path), "long")
        assert (told["status"], told["error_message"]) == ("timeout", "Execution timed out after 1 seconds")
        # What is said counts, also where it is what would have been.
        assert run_code_in_docker("python", "a.py", str(tmp_path), "short", timeout=30)["status"] == "success"


def test_whether_docker_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check_docker_available() is False
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\nexit 1\n")
    docker.chmod(0o755)
    assert check_docker_available() is False
    docker.write_text("#!/bin/sh\necho 28.2\n")
    assert check_docker_available() is True


def test_monitors() -> None:
    monitor = ResourceMonitor()
    monitor.start_monitoring()
    monitor.update_monitoring()
    assert monitor.get_resource_usage()["memory_peak_mb"] > 0

    watch = ExecutionMonitor()
    watch.start_execution("first", "python", 8)
    result = execute_code("python", "print(1)")
    watch.end_execution("first", result["status"], result)
    watch.start_execution("second", "python", 8)
    stats = watch.get_execution_stats()
    assert (stats["total_executions"], stats["completed_executions"], stats["success_count"]) == (2, 1, 1)

    collector = MetricsCollector()
    assert collector.get_summary()["total_executions"] == 0
    collector.record_execution(result | {"language": "python"})
    collector.record_execution(execute_code("python", "1 / 0") | {"language": "python"})
    summary = collector.get_summary()
    assert (summary["total_executions"], summary["success_count"], summary["success_rate"]) == (2, 1, 50.0)
    assert collector.get_language_stats()["python"]["error_count"] == 1
    collector.clear()
    assert collector.metrics == []
