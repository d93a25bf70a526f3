#!/usr/bin/env python3
"""Makes `belljar/_sync` from `belljar/_async`: the same code without its waiting.

generate.py            writes the files
generate.py --check    says whether they are as they would be written; exit 1 if not
"""

from __future__ import annotations

import io
import pathlib
import re
import sys
import tokenize

PACKAGE = pathlib.Path(__file__).resolve().parent.parent / "src" / "belljar"
SOURCE, TARGET = PACKAGE / "_async", PACKAGE / "_sync"

NAMES = {
    "AsyncHTTPTransport": "HTTPTransport",
    "AsyncGenerator": "Generator",
    "AsyncIterable": "Iterable",
    "AsyncIterator": "Iterator",
    "StopAsyncIteration": "StopIteration",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aclose": "close",
    "aiter_bytes": "iter_bytes",
    "aread": "read",
    "asynccontextmanager": "contextmanager",
    "asynchronous": "synchronous",
    "handle_async_request": "handle_request",
}
OURS = re.compile(
    r"\bAsync(?=(Client|Sandbox|Stream|Pool|Files|Terminal|Channel|Wire|Line|Waiter|Nearby|NearbyAnswer|Far|FarAnswer)\b)"
)
WAITING = re.compile(r"\b(async|await) ")
# From Python 3.12 on, f-strings are several tokens.
TEXTS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def blocking(name: str) -> str:
    return NAMES.get(name, OURS.sub("", name))


def in_text(text: str) -> str:
    """Documentation and messages speak of the blocking face too."""
    return WAITING.sub("", re.sub(r"\w+", lambda found: blocking(found[0]), text))


def transform(source: str) -> str:
    """The blocking form of a module. Only names and keywords change, so lines stay where they are."""
    lines = source.splitlines(keepends=True)
    edits: list[tuple[int, int, int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        (row, start), (last_row, end) = token.start, token.end
        if token.type == tokenize.NAME and token.string in ("async", "await"):
            # With the space that follows it.
            edits.append((row, start, end + 1, ""))
        elif token.type == tokenize.NAME and blocking(token.string) != token.string:
            edits.append((row, start, end, blocking(token.string)))
        elif token.type in TEXTS and in_text(token.string) != token.string:
            for at in range(row, last_row + 1):
                begin = start if at == row else 0
                finish = end if at == last_row else len(lines[at - 1])
                edits.append((at, begin, finish, in_text(lines[at - 1][begin:finish])))
    for row, start, end, text in sorted(edits, reverse=True):
        line = lines[row - 1]
        lines[row - 1] = line[:start] + text + line[end:]
    return unawaited("".join(lines))


def unawaited(made: str) -> str:
    """Types: what an awaitable gives is simply what is returned, and two names may have become one."""
    made = re.sub(r"Awaitable\[(\w+)\]", r"\1", made)
    made = made.replace("Awaitable, ", "").replace(", Awaitable", "")
    made = re.sub(r"(Generator\[.*?), None\]", r"\1, None, None]", made)
    for name in ("Iterable", "Iterator"):
        made = re.sub(rf"(import .*)\b{name}, (.*\b{name}\b)", r"\1\2", made)
        made = made.replace(f"{name}[bytes] | {name}[bytes]", f"{name}[bytes]")
    return made


HEAD = "# Made from `_async` by `scripts/generate.py`. Do not edit.\n"
ABOUT = '"""The package\'s face, for code that blocks. Made from `_async`."""\n'


def generated() -> dict[str, str]:
    """What belongs into each file."""
    made = {}
    for path in sorted(SOURCE.glob("*.py")):
        made[path.name] = HEAD + (ABOUT if path.name == "__init__.py" else transform(path.read_text()))
    return made


def main() -> int:
    made = generated()
    there = {path.name: path.read_text() for path in TARGET.glob("*.py")}
    if "--check" in sys.argv[1:]:
        different = sorted(name for name in {*made, *there} if made.get(name) != there.get(name))
        if different:
            print(
                f"belljar/_sync is not as _async says ({', '.join(different)}): run scripts/generate.py",
                file=sys.stderr,
            )
        return 1 if different else 0
    TARGET.mkdir(exist_ok=True)
    for name in there.keys() - made.keys():
        (TARGET / name).unlink()
    for name, text in made.items():
        (TARGET / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
