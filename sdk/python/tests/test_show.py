"""How results look."""

from __future__ import annotations

import belljar
from belljar import results


def _raw(**changes: object) -> dict[str, object]:
    usage = {"wall_ms": 3.14, "cpu_ms": 2.0, "memory_peak_bytes": 1, "processes_peak": 1, "start_ms": 0.4}
    limits = {"timeout_ms": 1000, "memory_bytes": 1 << 20, "cpus": 1.0, "processes": 1, "output_bytes": 1}
    raw: dict[str, object] = {
        "id": "run_a",
        "sandbox": "sbx_a",
        "language": "python",
        "runtime": "Python 3",
        "backend": "native",
        "status": "ok",
        "success": True,
        "exit_code": 0,
        "signal": None,
        "stdout": "",
        "stderr": "",
        "stdout_truncated": False,
        "stderr_truncated": False,
        "compile": None,
        "value": None,
        "value_text": None,
        "displays": [],
        "error": None,
        "state": "kept",
        "usage": usage,
        "limits": {**limits, "disk_bytes": 1, "open_files": 1, "of_a_newer_daemon": 1},
        "report": {},
        "files": [],
        "started_at": "now",
    }
    return {**raw, **changes}


def test_a_line() -> None:
    assert repr(results.result(_raw(value=42, value_text="42"))) == "<Result ok value=42 3.1 ms>"
    error = {"type": "KeyError", "message": "'k'", "traceback": "T", "line": 3, "category": None, "hint": None}
    failed = results.result(_raw(status="failed", success=False, exit_code=1, error=error, stdout="x" * 100))
    assert repr(failed).startswith("<Result failed exit_code=1 KeyError: 'k' (line 3) stdout='xxx")
    assert len(repr(failed)) < 200
    assert repr(failed.error) == "<ErrorInfo KeyError: 'k' (line 3)>" and str(failed.error) == "T"
    table = results.result(_raw(value=[{}], value_text="   a\n0  1\n1  2" + " " * 1000))
    assert repr(table) == "<Result ok value=a 0 1 1 2… 3.1 ms>"


def test_a_notebook_is_safe_from_what_code_shows() -> None:
    import base64

    def shown(mime: str, data: bytes) -> dict[str, str]:
        return {"mime": mime, "data": base64.b64encode(data).decode()}

    script = b"<script>alert(1)</script>"
    raw = _raw(
        stdout="<script>1</script>",
        displays=[shown("text/html", script + b'"'), shown("image/svg+xml", script), shown("image/png", b"PNG")],
    )
    result = results.result(raw)
    html = result._repr_html_()
    assert "<script" not in html
    assert 'iframe sandbox=""' in html and "&quot;" in html
    assert 'src="data:image/svg+xml;base64,' in html and 'src="data:image/png;base64,' in html
    assert result._repr_png_() == b"PNG" and result.displays[2]._repr_png_() == b"PNG"
    assert result.displays[0]._repr_png_() is None


def test_charts_come_back() -> None:
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()"
    with belljar.Sandbox(memory="1g", timeout=60) as sandbox:
        result = sandbox.run(code, check=True)
    assert result.png is not None and result.png.startswith(b"\x89PNG\r\n")
    assert "data:image/png;base64," in result._repr_html_()
