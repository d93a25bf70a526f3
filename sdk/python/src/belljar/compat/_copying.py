"""Files of a sandbox by absolute paths, in and out.

Below the workspace the daemon reads and writes them. Elsewhere (``/tmp``, volumes) a command inside does, with the rights
that code inside has. Whatever comes out is written below the place that the caller named, regular files only.
"""

from __future__ import annotations

import asyncio
import io
import os
import stat
import tarfile
from pathlib import Path, PurePosixPath

from .. import AsyncSandbox, Result
from ..errors import NotFound

_MOST_BYTES = 64 << 20
_MOST_ARCHIVE = 256 << 20
_MOST_MEMBERS = 100_000


class PathTraversalError(ValueError, RuntimeError):
    """A path that climbs out of where it begins."""


def resolve(work_dir: str, path: str) -> tuple[PurePosixPath, str | None]:
    """The absolute path, and the same below the workspace if it is there."""
    given = PurePosixPath(path)
    if ".." in given.parts:
        raise PathTraversalError(f"the path {path!r} contains '..'; give one that does not")
    if "\0" in path:
        raise ValueError(f"the path {path!r} contains NUL")
    root = PurePosixPath(work_dir)
    whole = root / given
    return whole, str(whole.relative_to(root)) if whole.is_relative_to(root) else None


def _not_found(path: str) -> FileNotFoundError:
    return FileNotFoundError(f"File not found: {path}")


async def read(sandbox: AsyncSandbox, work_dir: str, path: str) -> bytes:
    """All of a file."""
    whole, below = resolve(work_dir, path)
    if below is not None:
        try:
            return await sandbox.files.read(below)
        except NotFound:
            raise _not_found(path) from None
    result = await sandbox.exec(["cat", "--", str(whole)], max_output=_MOST_BYTES)
    return _output(result, path)


async def write(sandbox: AsyncSandbox, work_dir: str, path: str, data: bytes) -> None:
    """Writes a file, and makes the directories on the way to it."""
    whole, below = resolve(work_dir, path)
    if below is not None:
        await sandbox.files.write(below, data)
        return
    line = 'mkdir -p -- "$(dirname -- "$1")" && cat >"$1"'
    _output(await sandbox.exec(["sh", "-c", line, "sh", str(whole)], stdin=data), path)


async def copy_out(sandbox: AsyncSandbox, work_dir: str, path: str, to: Path) -> None:
    """A file, or a directory with what is in it."""
    whole, below = resolve(work_dir, path)
    kind = await sandbox.exec(["stat", "-c", "%F", "--", str(whole)])
    if not kind.success:
        raise _not_found(path)
    if kind.stdout.strip() != "directory":
        data = await read(sandbox, work_dir, path)
        await asyncio.to_thread(_put, to, whole.name, data)
        return
    if below is not None:
        archive = await _archive(sandbox, "" if below == "." else below)
    else:
        result = await sandbox.exec(["tar", "-C", str(whole), "-cf", "-", "."], max_output=_MOST_BYTES)
        archive = _output(result, path)
    inside = None if below in (None, ".") else PurePosixPath(below or "")
    await asyncio.to_thread(_unpack, archive, inside, to)


async def copy_in(sandbox: AsyncSandbox, work_dir: str, source: Path, path: str) -> None:
    """A file, or a directory with what is in it."""
    whole, below = resolve(work_dir, path)
    # In the workspace under its whole name, so that it is there even if nothing is in it.
    data, is_archive = await asyncio.to_thread(_take, source, PurePosixPath(below or "."))
    if not is_archive:
        is_directory = below == "." or path.endswith(("/", "/."))
        if is_directory or (await sandbox.exec(["test", "-d", str(whole)])).success:
            path = str(whole / source.name)
        await write(sandbox, work_dir, path, data)
        return
    if below is not None:
        await sandbox.files.unpack(data, "")
        return
    line = 'mkdir -p -- "$1" && tar -C "$1" -xf -'
    _output(await sandbox.exec(["sh", "-c", line, "sh", str(whole)], stdin=data), path)


async def _archive(sandbox: AsyncSandbox, below: str) -> bytes:
    # Files with holes make an archive far larger than what the code may write.
    pieces: list[bytes] = []
    size = 0
    async for piece in sandbox.files.archive_stream(below):
        size += len(piece)
        if size > _MOST_ARCHIVE:
            raise RuntimeError(f"the directory has more than {_MOST_ARCHIVE} bytes; copy its files one by one")
        pieces.append(piece)
    return b"".join(pieces)


def _output(result: Result, path: str) -> bytes:
    if not result.success:
        if "No such file" in result.stderr:
            raise _not_found(path)
        raise RuntimeError(result.stderr.strip() or f"it ended with {result.exit_code}")
    if result.stdout_truncated:
        raise RuntimeError(f"{path} is larger than {_MOST_BYTES} bytes")
    return result.stdout_bytes


def _take(source: Path, prefix: PurePosixPath) -> tuple[bytes, bool]:
    """A file of the host, or an archive of a directory of it; and whether it is the latter."""
    if source.is_dir():
        return _pack(source, prefix), True
    if not source.exists():
        raise _not_found(str(source))
    return source.read_bytes(), False


def _put(to: Path, name: str, data: bytes) -> None:
    _write_host(to / name if to.is_dir() else to, data)


def _write_host(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _unpack(archive: bytes, prefix: PurePosixPath | None, to: Path) -> None:
    """Regular files and directories; the names are the code's, so anything that climbs is left out, as are links."""
    to.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as members:
        for count, member in enumerate(members):
            if count == _MOST_MEMBERS:
                raise RuntimeError(f"there are more than {_MOST_MEMBERS} files")
            name = PurePosixPath(member.name)
            if prefix is not None and name.is_relative_to(prefix):
                name = name.relative_to(prefix)
            if name.is_absolute() or ".." in name.parts:
                continue
            target = to / name
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
            elif member.isreg() and (source := members.extractfile(member)) is not None:
                _write_host(target, source.read())


def _pack(source: Path, prefix: PurePosixPath) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for folder, _, names in os.walk(source):
            inside = prefix / Path(folder).relative_to(source).as_posix()
            if inside.parts:
                member = tarfile.TarInfo(str(inside))
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(member)
            for name in names:
                path = Path(folder, name)
                info = path.lstat()
                if stat.S_ISREG(info.st_mode):
                    member = tarfile.TarInfo(str(inside / name))
                    member.size, member.mode = info.st_size, 0o755 if info.st_mode & 0o100 else 0o644
                    with path.open("rb") as opened:
                        archive.addfile(member, opened)
    return packed.getvalue()
