"""Open files. A thousand sandboxes need as many connections, and most systems let a program begin with room for 1024."""

from __future__ import annotations

import errno
import socket

_MOST = 1 << 16
_enough = 192
"""Numbers of descriptors up to this say that there is room. Few programs get there, so it is looked at then."""


def unix_socket() -> socket.socket:
    """A socket; with it, there is still room for what else the program opens, if the system allows that."""
    try:
        made = socket.socket(socket.AF_UNIX)
    except OSError as problem:
        if problem.errno != errno.EMFILE or not _make_room(full=True):
            raise
        made = socket.socket(socket.AF_UNIX)
    if made.fileno() > _enough:
        _make_room()
    return made


def look_ahead() -> None:
    """Before somebody else opens one for us."""
    unix_socket().close()


def _make_room(full: bool = False) -> bool:
    """Raises the limit that a program may raise itself. Whether that was possible."""
    global _enough
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        _enough = _MOST
        return False
    with_room = soft * 3 // 4
    if _enough < with_room and not full:
        _enough = with_room
        return False
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if wanted <= soft:
        _enough = _MOST
        return False
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        _enough = _MOST
        return False
    _enough = wanted * 3 // 4
    return True
