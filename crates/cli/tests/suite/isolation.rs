//! What code inside can see and reach, judged by things that are really there on the host.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Child, Command, Stdio};
use std::thread;

use super::harness::{belljar, directory, is_root, json, marker, need_tool, python, run};

#[test]
fn files_of_the_host_are_not_there() {
    let word = marker();
    let dir = directory(&[("canary", &word)]);
    let canary = dir.path().join("canary");
    let code = format!("
import os
print(os.path.exists('{}'), [p for p in ('/root', '/home', '/etc/shadow', '/var', '/run', '/sys', '/boot', '/mnt', '/proc/kcore', '/proc/sysrq-trigger') if os.path.exists(p) and (not os.path.isdir(p) or os.listdir(p))])
found = 0
for top, dirs, files in os.walk('/'):
    if top == '/': dirs[:] = [d for d in dirs if d not in ('dev', 'proc', 'usr')]
    for name in files:
        try: found += b'{}' in open(os.path.join(top, name), 'rb').read(1 << 20) and top != '/workspace'
        except OSError: pass
print(found)
", canary.display(), word);
    assert_eq!(python(&code), "False []\n0");
}

#[test]
fn the_callers_environment_and_arguments_are_not_there() {
    let word = marker();
    let code = "
import glob
seen = b''
for path in glob.glob('/proc/*/environ') + glob.glob('/proc/*/cmdline') + glob.glob('/proc/*/task/*/environ'):
    try: seen += open(path, 'rb').read()
    except OSError: pass
print(b'bj' + b'mark' in seen)
";
    let output = belljar()
        .args(["run", "-c", code])
        .env("CANARY", &word)
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "False\n",
        "{output:?}"
    );
}

#[test]
fn processes_of_the_host_are_not_there() {
    let word = marker();
    let mut canary = Command::new("/bin/sh")
        .args(["-c", "exec sleep 600", &word])
        .spawn()
        .unwrap();
    let code = format!(
        "
import os
pids = [p for p in os.listdir('/proc') if p.isdigit()]
print(len(pids) <= 2, os.getpid() < 10)
try: os.kill({}, 0); print('reached')
except ProcessLookupError: print('no such process')
",
        canary.id()
    );
    let seen = run(&["-c", &code]);
    canary.kill().unwrap();
    canary.wait().unwrap();
    assert_eq!(seen.parts(), (0, "True True\nno such process\n", ""));
}

#[test]
fn ports_and_sockets_of_the_host_cannot_be_reached() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap().port();
    let word = marker();
    let _abstract_socket =
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(&word).unwrap()).unwrap();
    let code = format!("
import socket
for family, address in ((socket.AF_INET, ('127.0.0.1', {port})), (socket.AF_INET6, ('::1', {port})), (socket.AF_UNIX, '\\0{word}'), (socket.AF_INET, ('10.0.0.1', 80))):
    try:
        s = socket.socket(family); s.settimeout(3); s.connect(address); print('reached', address)
    except OSError as e: print('no', end=' ')
for family in (socket.AF_NETLINK, socket.AF_PACKET, socket.AF_ALG, socket.AF_VSOCK, socket.AF_BLUETOOTH):
    try: socket.socket(family, socket.SOCK_RAW); print('made', family)
    except OSError: print('no', end=' ')
print(socket.if_nameindex() if False else '')
");
    assert_eq!(python(&code).trim(), "no no no no no no no no no");
}

#[test]
fn the_report_says_what_was_verified() {
    let result = json(&["-c", "pass"]);
    let report = result.get("report");
    assert_eq!(report["mode"], if is_root() { "root" } else { "rootless" });
    let namespaces: BTreeSet<_> = report["namespaces"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| n.as_str().unwrap())
        .collect();
    for wanted in ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"] {
        assert!(
            namespaces.contains(wanted) || (wanted == "mnt" && namespaces.contains("mount")),
            "{wanted}: {report:#}"
        );
    }
    assert_eq!(report["no_new_privs"], true);
    assert_eq!(report["capabilities"], "none");
    assert_eq!(report["seccomp"]["mode"], "filter");
    assert!(
        report["seccomp"]["filters"].as_u64() >= Some(1),
        "{report:#}"
    );
    assert!(report["landlock"].as_u64() >= Some(1), "{report:#}");
    assert_eq!(report["read_only_root"], true);
    assert_eq!(report["network"], "none");
    assert_eq!(report["weakened"], serde_json::json!([]));
    let controllers = report["cgroup"]["controllers"].as_object().unwrap();
    assert!(controllers.len() >= 3, "{report:#}");
    let memory = controllers
        .iter()
        .find(|(name, _)| name.starts_with("memory"))
        .unwrap()
        .1;
    assert_eq!(memory, &(512 << 20).to_string(), "{report:#}");
    if is_root() {
        assert!(report["uid"].as_u64() >= Some(0x7000_0000), "{report:#}");
    }
}

#[test]
fn the_same_seen_from_inside() {
    let code = "
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
for key in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp'): print(key, status[key].strip())
import os
print(sorted(os.listdir('/proc/self/fd')), os.listdir('/sys') if os.path.exists('/sys') else 'no sys')
print(sorted(os.listdir('/dev')))
try: os.open('/dev/tty', os.O_RDWR); print('tty')
except OSError: print('no tty')
";
    let seen = python(code);
    assert_eq!(
        seen,
        "CapInh 0000000000000000\nCapPrm 0000000000000000\nCapEff 0000000000000000\nCapBnd 0000000000000000\n\
         CapAmb 0000000000000000\nNoNewPrivs 1\nSeccomp 2\n['0', '1', '2', '3'] no sys\n\
         ['fd', 'full', 'null', 'random', 'shm', 'stderr', 'stdin', 'stdout', 'urandom', 'zero']\nno tty"
    );
}

#[test]
fn a_weakening_is_named_in_the_report() {
    for protection in ["seccomp", "landlock", "netns"] {
        let result = json(&["--weaken", protection, "-c", "print('ran')"]);
        assert_eq!(
            (result.status(), result.stdout()),
            ("ok", "ran"),
            "{protection}: {:#}",
            result.value
        );
        assert_eq!(
            result.get("report.weakened"),
            &serde_json::json!([protection])
        );
    }
    let result = json(&["--weaken", "seccomp", "-c", "pass"]);
    assert_ne!(result.text("report.seccomp.mode"), "filter");
    let result = json(&["--weaken", "landlock", "-c", "pass"]);
    assert!(result.get("report.landlock").is_null());
}

/// A program that says it is ready and then waits for a line.
fn waiting(code: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = belljar()
        .args([
            "run",
            "-c",
            &format!("{code}\nprint('ready', flush=True)\n__import__('sys').stdin.read()"),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while line.trim_end() != "ready" {
        line.clear();
        assert_ne!(reader.read_line(&mut line).unwrap(), 0, "it ended early");
    }
    (child, reader)
}

#[test]
fn two_at_a_time_do_not_see_each_other() {
    let word = marker();
    let plant = format!(
        "
import os, socket
for d in ('/tmp', '/dev/shm', '/workspace'): open(d + '/{word}', 'w').write('x')
s = socket.socket(socket.AF_UNIX); s.bind('\\0{word}'); s.listen()
"
    );
    let (mut child, mut reader) = waiting(&plant);
    let look = format!(
        "
import os, socket
print([d for d in ('/tmp', '/dev/shm', '/workspace') if os.path.exists(d + '/{word}')])
print(len([p for p in os.listdir('/proc') if p.isdigit()]) <= 2)
try: socket.socket(socket.AF_UNIX).connect('\\0{word}'); print('reached')
except OSError: print('not reached')
"
    );
    let seen = python(&look);
    drop(child.stdin.take());
    reader.read_to_string(&mut String::new()).unwrap();
    child.wait().unwrap();
    assert_eq!(seen, "[]\nTrue\nnot reached");
}

#[test]
fn many_at_a_time_all_get_what_is_theirs() {
    let threads: Vec<_> = (0..12)
        .map(|i| {
            thread::spawn(move || {
                let code = format!("open('/tmp/x', 'w').write('{i}'); import time; time.sleep(0.1); print(open('/tmp/x').read(), end='')");
                (i, json(&["-c", &code]))
            })
        })
        .collect();
    let mut ids = BTreeSet::new();
    for (i, result) in threads.into_iter().map(|thread| thread.join().unwrap()) {
        assert_eq!(result.text("stdout"), i.to_string(), "{:#}", result.value);
        ids.insert((
            result.text("sandbox").to_owned(),
            result.get("report.uid").as_u64(),
        ));
    }
    assert_eq!(ids.len(), 12);
    if is_root() {
        let uids: BTreeSet<_> = ids.iter().map(|(_, uid)| uid).collect();
        assert_eq!(uids.len(), 12, "one user id each: {ids:?}");
    }
}

#[test]
fn nested_namespaces_and_mounts_are_refused() {
    need_tool("unshare", "util-linux");
    let code = "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
CLONE = {'user': 0x10000000, 'mnt': 0x20000, 'pid': 0x20000000, 'net': 0x40000000}
for name, flag in CLONE.items():
    print(name, libc.unshare(flag), end=' ')
print('mount', libc.mount(b'none', b'/tmp', b'tmpfs', 0, None), 'chroot', libc.chroot(b'/tmp'), end=' ')
print('ptrace', libc.ptrace(16, 1, 0, 0), 'keyctl', libc.syscall(250, 0, -3, 1), 'io_uring', libc.syscall(425, 1, 0), end=' ')
print('bpf', libc.syscall(321, 0, 0, 0), 'setuid', libc.setuid(0))
";
    assert_eq!(
        python(code),
        "user -1 mnt -1 pid -1 net -1 mount -1 chroot -1 ptrace -1 keyctl -1 io_uring -1 bpf -1 setuid -1"
    );
}

#[test]
fn no_setuid_program_helps() {
    let code = "
import os, subprocess
for path in ('/usr/bin/su', '/usr/bin/passwd', '/usr/bin/mount', '/usr/bin/newgrp'):
    if os.path.exists(path): subprocess.run([path], stdin=subprocess.DEVNULL, capture_output=True, timeout=20)
print(os.getresuid())
for option in open('/proc/self/mountinfo'):
    if 'nosuid' not in option.split()[5]: print('suid mount', option)
";
    assert_eq!(python(code), "(1000, 1000, 1000)");
}

#[test]
fn the_programs_of_the_sandbox_cannot_touch_its_first_process() {
    let code = "
import os
for path in ('/proc/1/mem', '/proc/1/environ', '/proc/1/maps', '/proc/1/fd', '/proc/1/root', '/proc/1/exe'):
    try:
        os.listdir(path) if path.endswith(('fd', 'root')) else (os.readlink(path) if path.endswith('exe') else open(path, 'rb').read(1))
        print('read', path)
    except OSError: pass
for sig in (9, 15, 19, 2):
    try: os.kill(1, sig)
    except OSError: pass
print('still here')
";
    assert_eq!(python(code), "still here");
}

#[test]
fn the_host_is_as_it_was() {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    python("import socket, os\ntry: socket.sethostname('owned')\nexcept OSError: pass");
    assert_eq!(
        fs::read_to_string("/proc/sys/kernel/hostname").unwrap(),
        name
    );
}

#[test]
fn nothing_can_be_said_to_the_keeper_from_inside() {
    // The shape of init's own reports: the command ended, with exit code 0.
    let code = "
import os, struct
for fd in range(3, 256):
    try: os.write(fd, struct.pack('<IIii', 4, 1, 1, 0) * 4); print('wrote to', fd)
    except OSError: pass
raise SystemExit(9)
";
    let result = json(&["-c", code]);
    assert_eq!(
        (result.status(), result.stdout(), result.code),
        ("failed", "", 9)
    );
}
