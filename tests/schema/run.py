#!/usr/bin/env python3
"""Has schemathesis ask a daemon everything that its own description of its API says one may, and much that one may not.

No answer may be a server's error, or have a status, type or shape that the description does not have. Done twice: with sandboxes and runs that do not exist, and with
ones that do.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "chaos"))

from service import TOKEN, Client, Daemon  # noqa: E402

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
SETTINGS = """
[pool]
python = 0
[limits.maximum]
timeout_ms = "500ms"
memory_bytes = "64m"
[limits.default]
timeout_ms = "500ms"
memory_bytes = "64m"
# Nobody is there: whatever packages are asked for, nothing leaves the machine.
[packages]
python = "http://127.0.0.1:9/"
javascript = "http://127.0.0.1:9/"
timeout = "1s"
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--belljar", default=str(HERE.parent.parent / "target/release/belljar"), help="default: %(default)s")
    parser.add_argument("--schemathesis", required=True, help="the program; scripts/setup schema installs it")
    parser.add_argument("--seconds", type=int, default=25, help="of each of the two parts (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None)
    return parser.parse_args()


def attack(options: argparse.Namespace, port: int, work: Path, settings: str, more: list[str]) -> int:
    config = work / "schemathesis.toml"
    config.write_text(settings)
    command = [options.schemathesis, "--config-file", str(config), "run", f"http://127.0.0.1:{port}/openapi.json", "--checks", CHECKS]
    command += ["--header", f"Authorization: Bearer {TOKEN}", "--phases", "fuzzing", "--max-time", str(options.seconds), "--max-examples", "20"]
    command += ["--workers", "2", "--request-timeout", "60", "--continue-on-failure", "--warnings", "off", *more]
    if options.seed is not None:
        command += ["--seed", str(options.seed)]
    env = os.environ | {"SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=work, env=env, check=False).returncode


def main() -> int:
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="belljar-schema-") as directory:
        work = Path(directory)
        daemon = Daemon(options.belljar, work, SETTINGS)
        try:
            failed = attack(options, daemon.port, work, "", [])
            client = Client(daemon.port)
            sandbox = json.loads(client.ask("POST", "/v1/sandboxes", {"files": {"a.txt": "x", "d/b": "y"}})[1])["id"]
            run = json.loads(client.ask("POST", "/v1/runs", {"code": "1/0"})[1])["id"]
            known = "".join(
                f'[[operations]]\ninclude-path-regex = "^/v1/{kind}/"\nparameters = {{ "path.id" = "{one}" }}\n'
                for kind, one in (("sandboxes", sandbox), ("runs", run))
            )
            more = ["--include-path-regex", "\\{id\\}", "--exclude-method", "DELETE"]
            failed |= attack(options, daemon.port, work, known, more)
            if client.ask("GET", f"/v1/sandboxes/{sandbox}")[0] != 200:
                print("schema: the sandbox has not survived")
                failed |= 1
        finally:
            daemon.stop()
    return int(failed != 0)


if __name__ == "__main__":
    sys.exit(main())
