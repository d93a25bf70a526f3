"""The blocking face is the waiting one, and neither has an opinion of its own."""

from __future__ import annotations

import inspect
import pathlib
import re
import subprocess
import sys
import typing

import pytest

import belljar
from belljar import requests

PACKAGE = pathlib.Path(belljar.__file__).parent
SCRIPTS = PACKAGE.parent.parent / "scripts"
PAIRS = ["Client", "Sandbox", "Stream", "Pool", "Files", "Terminal"]


def test_the_blocking_face_is_made_from_the_waiting_one() -> None:
    checked = subprocess.run([sys.executable, str(SCRIPTS / "generate.py"), "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_a_change_of_one_face_alone_is_noticed(tmp_path: pathlib.Path) -> None:
    copy = tmp_path / "sdk"
    (copy / "scripts").mkdir(parents=True)
    (copy / "scripts" / "generate.py").write_text((SCRIPTS / "generate.py").read_text())
    for face in ("_async", "_sync"):
        (copy / "src" / "belljar" / face).mkdir(parents=True)
        for path in (PACKAGE / face).glob("*.py"):
            (copy / "src" / "belljar" / face / path.name).write_text(path.read_text())
    check = [sys.executable, str(copy / "scripts" / "generate.py"), "--check"]
    assert subprocess.run(check).returncode == 0
    changed = copy / "src" / "belljar" / "_sync" / "pool.py"
    changed.write_text(changed.read_text() + "\n# by hand\n")
    refused = subprocess.run(check, capture_output=True, text=True)
    assert refused.returncode == 1 and "pool.py" in refused.stderr


@pytest.mark.parametrize("name", PAIRS)
def test_both_have_the_same_methods_with_the_same_parameters(name: str) -> None:
    blocking, waiting = getattr(belljar, name), getattr(belljar, f"Async{name}")
    renamed = {"aclose": "close"}

    def methods(kind: type) -> dict[str, list[tuple[str, object, object]]]:
        found = {}
        for method, function in inspect.getmembers(kind, callable):
            if not method.startswith("_") or method == "__init__":
                parameters = inspect.signature(function).parameters.values()
                found[renamed.get(method, method)] = [(each.name, each.kind, each.default) for each in parameters]
        return found

    assert methods(blocking) == methods(waiting)


def test_nothing_of_the_blocking_face_waits() -> None:
    for path in (PACKAGE / "_sync").glob("*.py"):
        code = re.sub(r'""".*?"""|#.*', "", path.read_text(), flags=re.S)
        assert not re.search(r"\b(async|await|asyncio|Async\w*)\b", code), path


def test_what_is_not_given_is_not_sent() -> None:
    for options in (requests.RunOptions, requests.SandboxOptions, requests.CodeOptions, requests.CommandOptions):
        assert requests.body(options, "f", {}) == {}
        nothing = dict.fromkeys(options.__annotations__)
        assert requests.body(options, "f", nothing) == {}


def test_what_is_given_is_sent_in_the_contracts_words() -> None:
    sent = requests.body(
        requests.RunOptions,
        "run",
        {"timeout": 1.5, "memory": "64m", "cpus": 0.5, "max_output": 10, "stdin": b"\xff", "globals": {"x": (1, 2)}},
    )
    assert sent == {
        "limits": {"timeout_ms": 1500, "memory_bytes": "64m", "cpus": 0.5, "output_bytes": 10},
        "stdin": {"base64": "/w=="},
        "globals": {"x": [1, 2]},
    }


def test_a_name_that_is_not_known_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'memmory'"):
        belljar.run("1", memmory="1g")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'memmory'"):
        belljar.Sandbox(memmory="1g")  # type: ignore[call-arg]


WRONG = [
    ({"env": {"A": 1}}, "env['A']: int"),
    ({"env": {1: "A"}}, "a key of env: int"),
    ({"env": ["A=1"]}, "env: list"),
    ({"labels": {"a": 1}}, "labels['a']: int"),
    ({"args": [1]}, "args[0]: int"),
    ({"args": "abc"}, "args: str"),
    ({"imports": "math"}, "imports: str"),
    ({"packages": {"numpy": "2"}}, "packages: dict"),
    ({"collect": 5}, "collect: int"),
    ({"files": ["a"]}, "files: list"),
    ({"files": {"a": None}}, "files['a']: NoneType"),
    ({"globals": [1]}, "globals: list"),
    ({"globals": {1: 2}}, "a key of globals: int"),
    ({"stdin": 5}, "stdin: int"),
    ({"language": 3}, "language: int"),
    ({"workdir": pathlib.Path("/a")}, "workdir: PosixPath"),
    ({"read_only": 1}, "read_only: int"),
    ({"network": True}, "network: bool"),
    ({"memory": object()}, "memory: object"),
    ({"processes": True}, "processes: bool"),
    ({"timeout": [1]}, "timeout: [1]"),
]


@pytest.mark.parametrize(("options", "told"), WRONG, ids=[told for _, told in WRONG])
def test_an_option_of_the_wrong_type_is_named(options: dict[str, object], told: str) -> None:
    with pytest.raises(belljar.InvalidRequest, match=re.escape(f"{told} is not accepted; give ")):
        belljar.run("1", **options)  # type: ignore[arg-type]


def test_other_things_of_the_wrong_type_are_named() -> None:
    sandbox = belljar.Sandbox()
    for call, told in [
        (lambda: belljar.run(None), "code: NoneType"),  # type: ignore[arg-type]
        (lambda: belljar.stream(b"1"), "code: bytes"),  # type: ignore[arg-type]
        (lambda: sandbox.run(5), "code: int"),  # type: ignore[arg-type]
        (lambda: sandbox.shell(["ls"]), "line: list"),  # type: ignore[arg-type]
        (lambda: sandbox.stream_shell(None), "line: NoneType"),  # type: ignore[arg-type]
        (lambda: sandbox.exec(["ls", 1]), "argv[1]: int"),  # type: ignore[list-item]
        (lambda: belljar.Client(5), "url: int"),  # type: ignore[arg-type]
        (lambda: belljar.Client("unix:///x", token=5), "token: int"),  # type: ignore[arg-type]
        (lambda: belljar.Client(patience="1"), "patience: str"),  # type: ignore[arg-type]
        (lambda: belljar.history(limit="5"), "limit: str"),  # type: ignore[arg-type]
        (lambda: belljar.Client().history(limit=2.5), "limit: float"),  # type: ignore[arg-type]
        (lambda: belljar.Sandbox.attach(5), "id: int"),  # type: ignore[arg-type]
    ]:
        with pytest.raises(belljar.InvalidRequest, match=re.escape(f"{told} is not accepted; give ")):
            call()  # type: ignore[no-untyped-call]
    for size in ("3", 1.5, None):
        with pytest.raises(TypeError, match=r"size: .* is not accepted; give a whole number"):
            belljar.Pool(size)  # type: ignore[arg-type]


ADDRESSES = [
    "http://[::1",
    "http://127.0.0.1:notaport",
    "http://127.0.0.1:99999",
    "http://:8080",
    "http://a b",
    "http://a\n",
    "http://a?b",
    "http://",
    "unix://",
    "a",
]


@pytest.mark.parametrize("url", ADDRESSES)
def test_an_address_that_is_none_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = re.escape(f"url: {url!r} is not accepted; give http://HOST:PORT")
    with pytest.raises(belljar.InvalidRequest, match=told):
        belljar.Client(url)
    monkeypatch.setenv("BELLJAR_URL", url)
    with pytest.raises(belljar.InvalidRequest, match=told):
        belljar.run("1")


@pytest.mark.parametrize("token", ["a\n", "a\r\nx: y", "é", "a\tb"])
def test_a_key_that_is_none_is_not_shown(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLJAR_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("BELLJAR_TOKEN", token)
    for call in (lambda: belljar.run("1"), lambda: belljar.Client("unix:///x", token=token)):
        with pytest.raises(belljar.InvalidRequest, match="token: it is not accepted; give ") as told:
            call()
        assert token not in str(told.value)


def test_names_of_sandboxes_lead_nowhere_else() -> None:
    sandbox = belljar.Sandbox.attach("../runs?a=b#c", tools={"f": lambda: 1})
    for call in (lambda: sandbox.run("1"), lambda: sandbox.run("1", tools={}), lambda: sandbox.info()):
        with pytest.raises(belljar.NotFound, match="is not an id"):
            call()


def test_a_line_is_not_split_into_letters() -> None:
    for call in (lambda: belljar.Sandbox().exec("ls"), lambda: belljar.Sandbox().terminal(argv="ls")):
        with pytest.raises(belljar.InvalidRequest, match=r"argv: str is not accepted; .* shell\(\)"):
            call()


def test_types_can_be_asked_for_while_the_program_runs() -> None:
    for function in (
        belljar.run,
        belljar.arun,
        belljar.stream,
        belljar.history,
        belljar.Client.run,
        belljar.AsyncClient.run,
    ):
        assert "options" in typing.get_type_hints(function)
    assert typing.get_type_hints(belljar.Sandbox.run)["code"] is str


def test_help_shows_every_option() -> None:
    for function in (belljar.run, belljar.Sandbox.__init__, belljar.AsyncClient.run):
        names = inspect.signature(function).parameters
        assert {"timeout", "memory", "files", "imports", "tools"} <= set(names)


def test_every_name_of_the_package_is_there() -> None:
    for name in belljar.__all__:
        assert getattr(belljar, name) is not None
    assert set(belljar.__all__) <= set(dir(belljar))
    with pytest.raises(AttributeError):
        belljar.nothing_like_it  # type: ignore[attr-defined]  # noqa: B018


def test_the_version_is_the_same_everywhere() -> None:
    project = PACKAGE.parent.parent
    assert f'version = "{belljar.__version__}"' in (project / "pyproject.toml").read_text()
    assert f'version = "{belljar.__version__}"' in (project.parent.parent / "Cargo.toml").read_text()


def test_importing_is_quick_because_it_loads_nothing_else() -> None:
    code = (
        "import sys; import belljar; print([m for m in ('httpx', 'websockets', 'asyncio', 'ssl') if m in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert told.stdout == "[]\n", told
