//! A container with a bridge of its own: what it may reach it reaches as ever, and the bridge leads neither to this host nor to others.

use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::super::backend::image;
use super::super::daemon::{Daemon, until};
use super::super::harness::binary;
use super::super::servers::{Names, Reply, Web};
use super::{containers, docker, result, run};

fn settings(more: &str) -> String {
    let image = image();
    format!("{more}\n[docker]\nimage = \"{image}\"\npull = \"never\"\nnetwork = \"bridge\"\n")
}

/// The networks of a process of ours, by name.
fn networks(process: u32) -> Vec<String> {
    let format = "{{.Name}} {{.Label \"belljar.process\"}}";
    let listed = docker(&["network", "ls", "--no-trunc", "--format", format]);
    let process = format!("/{process}/");
    let ours = listed.lines().filter(|line| line.contains(&process));
    ours.filter_map(|line| Some(line.split_once(' ')?.0.to_owned()))
        .collect()
}

fn inspected(network: &str) -> Value {
    let text = docker(&["network", "inspect", network]);
    serde_json::from_str::<Value>(&text).unwrap()[0].clone()
}

fn run_in(daemon: &Daemon, sandbox: &str, code: &str) -> Value {
    let result = daemon.post(&format!("{sandbox}/runs"), &json!({"code": code}));
    let result = result.ok();
    assert_eq!(result["status"], "ok", "{result:#}");
    result["value"].clone()
}

/// The address of this host that faces the world.
fn outer() -> String {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // Sends nothing.
    let connected = socket.connect("192.0.2.1:9");
    let address = connected.and_then(|()| socket.local_addr());
    address.map_or_else(|_| "127.0.0.2".into(), |address| address.ip().to_string())
}

#[test]
fn what_is_allowed_is_reached() {
    let web = Web::start(|asked| Reply::ok(format!("hello from {}", asked.path())));
    let port = web.port;
    let code = format!(
        r#"
import urllib.request
print([line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line])
print(len(open("/proc/net/route").readlines()), open("/proc/net/if_inet6").read().count("eth"))
print(urllib.request.urlopen("http://127.0.0.1:{port}/x").read().decode())
"#
    );
    let rule = format!("127.0.0.1:{port}");
    let kind = ["--container-network", "bridge"];
    let seen = result(&[&kind[..], &["--network", &rule, "-c", &code]].concat());
    assert_eq!(
        seen["stdout"], "['lo', 'eth0']\n2 0\nhello from /x\n",
        "{seen:#}"
    );
    let report = &seen["report"];
    assert_eq!(report["network"], "proxy");
    let name = report["bridge"].as_str().unwrap();
    assert!(name.starts_with("belljar-net-"), "{report}");
    // It went with the container.
    assert!(!docker(&["network", "ls"]).contains(name));
    // Who asks for no network has none, whatever the settings.
    let none = result(&[&kind[..], &["-c", "print(open('/proc/net/dev').read())"]].concat());
    let report = &none["report"];
    assert_eq!(
        (&report["network"], &report["bridge"]),
        (&json!("none"), &Value::Null)
    );
    assert!(
        !none["stdout"].as_str().unwrap().contains("eth"),
        "{none:#}"
    );
    let wrong = run(&["--container-network", "host", "-c", "1"]);
    assert!(
        wrong.code == 125 && wrong.stderr.contains("loopback or bridge"),
        "{wrong:?}"
    );
}

/// Code that serves a page on all addresses and hears datagrams; its value is the port of both, and its address.
const SERVER: &str = r#"
import http.server, socket, threading, urllib.request
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers(); self.wfile.write(b"of the other")
    def log_message(self, *_): pass
server = http.server.HTTPServer(("0.0.0.0", 0), Page)
threading.Thread(target=server.serve_forever, daemon=True).start()
heard, ear = [], socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
ear.bind(("0.0.0.0", server.server_port))
def hear():
    while True: heard.append(ear.recv(100).decode())
threading.Thread(target=hear, daemon=True).start()
own = urllib.request.build_opener(urllib.request.ProxyHandler({}))
address = [line.split()[0] for line in open("/etc/hosts") if line.split()[-1:] == [socket.gethostname()]][0]
[server.server_port, address, own.open(f"http://{address}:{server.server_port}/").read().decode()]
"#;

/// What this host serves at all its addresses, and what another sandbox does: neither hears of the code, by stream or by datagram.
#[test]
fn neither_the_host_nor_another_sandbox_is_reached() {
    let web = Web::at(Ipv4Addr::UNSPECIFIED.into(), |_| Reply::ok("of the host"));
    let ear = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, web.port)).unwrap();
    ear.set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let outer = outer();
    // They are there for whoever has a way.
    drop(TcpStream::connect((outer.as_str(), web.port)).unwrap());
    ear.send_to(b"here", (outer.as_str(), web.port)).unwrap();
    let mut heard = [0; 100];
    assert_eq!(ear.recv(&mut heard).unwrap(), 4);
    let daemon = Daemon::with(&settings(""));
    let other = daemon.sandbox(&json!({"backend": "docker", "network": "all"}));
    let served = run_in(&daemon, &other, SERVER);
    assert_eq!(served[2], "of the other", "{served}");
    let one = daemon.sandbox(&json!({"backend": "docker", "network": "all"}));
    let code = format!(
        r#"
import ipaddress, os, socket, urllib.request
os.environ.pop("no_proxy", None), os.environ.pop("NO_PROXY", None)
direct = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
proxied = urllib.request.build_opener(urllib.request.ProxyHandler({{"http": os.environ["http_proxy"]}}))
own = [line.split()[0] for line in open("/etc/hosts") if line.split()[-1:] == [socket.gethostname()]][0]
line = open("/proc/net/route").readlines()[1].split()
subnet = ipaddress.ip_network((socket.ntohl(int(line[1], 16)), bin(int(line[7], 16)).count("1")))
gateway, everybody = str(subnet[1]), str(subnet[-1])
def tries(opener, address):
    try: return opener.open(f"http://{{address}}/", timeout=2).read().decode()
    except OSError: return None
hosts = (gateway, "{outer}", "{other}", "172.17.0.1", "host.docker.internal", "gateway.docker.internal")
targets = [f"{{host}}:{{port}}" for port in ({host}, {port}) for host in hosts]
found = {{found for opener in (direct, proxied) for target in targets if (found := tries(opener, target))}}
# What is meant for everybody, from the interface's own address and by its name.
errors = []
for bound in ((own, None), (None, b"eth0")):
    voice = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    voice.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    if bound[0]: voice.bind((own, 0))
    else: voice.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, bound[1])
    for target in (gateway, everybody, "255.255.255.255", "224.0.0.1", "224.0.0.251", "{outer}", "{other}"):
        for port in ({host}, {port}):
            try: voice.sendto(f"{{target}} by {{bound}}".encode(), (target, port))
            except OSError as error: errors.append((target, str(error)))
try: voice = socket.create_connection(("fe80::1%eth0", {host}), 1); found.add("IPv6")
except OSError: pass
[sorted(found), errors]
"#,
        host = web.port,
        port = served[0],
        other = served[1].as_str().unwrap(),
    );
    let found = run_in(&daemon, &one, &code);
    assert_eq!(found[0], json!([]), "{found}");
    // Broadcasts were sent indeed.
    assert!(!found[1].to_string().contains("255.255.255.255"), "{found}");
    let told = ear
        .recv(&mut heard)
        .map(|length| String::from_utf8_lossy(&heard[..length]).into_owned());
    assert!(told.is_err(), "the host heard {told:?}");
    assert_eq!(run_in(&daemon, &other, "heard"), json!([]));
    assert!(web.asked().is_empty(), "{:?}", web.asked());
    // From the host's side there is no way to them either.
    let address = format!("{}:{}", served[1].as_str().unwrap(), served[0]);
    let reached = TcpStream::connect_timeout(&address.parse().unwrap(), Duration::from_secs(1));
    assert!(reached.is_err(), "{reached:?}");
}

/// Names come from our own server alone: by itself, and through the engine's.
#[test]
fn names_that_no_rule_allows_are_asked_of_nobody() {
    let web = Web::start(|_| Reply::ok("hello"));
    // One is whom the daemon asks, the other whom the engine would.
    let canary = Names::start(&[("site.test", &["127.0.0.1"])]);
    let engines = std::env::var("BELLJAR_TEST_RESOLVER").unwrap();
    let engines = Names::at(format!("{engines}:53").parse().unwrap(), &[]);
    let daemon = Daemon::with(&settings(&format!(
        "[network]\nprivate = ['127.0.0.1']\nresolver = '{}'\n",
        canary.address
    )));
    let rules = ["site.test", "127.0.0.1"].map(|host| format!("{host}:{}", web.port));
    let one = daemon.sandbox(&json!({"backend": "docker", "network": rules}));
    let code = format!(
        r#"
import socket, struct, urllib.request
def ask(server, name, stream=False):
    parts = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    query = b"\xab\xcd\1\0\0\1\0\0\0\0\0\0" + parts + b"\0\0\1\0\1"
    try:
        if stream:
            link = socket.create_connection((server, 53), 3)
            link.sendall(struct.pack("!H", len(query)) + query)
            answer = link.recv(512)[2:]
        else:
            link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            link.settimeout(3)
            link.sendto(query, (server, 53))
            answer = link.recv(512)
        return struct.unpack("!H", answer[6:8])[0]
    except OSError as error: return type(error).__name__
answers = [[ask(server, name, stream) for server in ("127.0.0.1", "127.0.0.11") for stream in (False, True)] for name in ("site.test", "secret.elsewhere.test")]
def get(name):
    try: return socket.gethostbyname(name).split(".")[0]
    except OSError as error: return type(error).__name__
direct = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
[open("/etc/resolv.conf").read().split()[:2], answers, get("site.test"), get("other.elsewhere.test"), direct.open("http://site.test:{port}/").read().decode()]
"#,
        port = web.port
    );
    let seen = run_in(&daemon, &one, &code);
    assert_eq!(seen[0], json!(["nameserver", "127.0.0.11"]), "{seen}");
    let allowed = seen[1][0].as_array().unwrap();
    assert!(allowed.iter().all(|count| *count == 1), "{seen}");
    let refused = seen[1][1].as_array().unwrap();
    assert!(refused.iter().all(|count| *count == 0), "{seen}");
    let rest = (&seen[2], &seen[3], &seen[4]);
    assert_eq!(
        rest,
        (&json!("127"), &json!("gaierror"), &json!("hello")),
        "{seen}"
    );
    let asked = canary.asked();
    assert!(!asked.is_empty(), "the canary is the daemon's resolver");
    assert!(asked.iter().all(|name| name == "site.test"), "{asked:?}");
    assert!(engines.asked().is_empty(), "{:?}", engines.asked());
}

#[test]
fn each_has_its_own_which_goes_with_it() {
    let daemon = Daemon::with(&settings(""));
    let pid = daemon.pid();
    let sandboxes: Vec<_> = (0..2)
        .map(|_| daemon.sandbox(&json!({"backend": "docker", "network": "all"})))
        .collect();
    daemon.sandbox(&json!({"backend": "docker"}));
    let ours = networks(pid);
    assert_eq!(ours.len(), 2, "{ours:?}");
    for name in &ours {
        let network = inspected(name);
        assert_eq!(network["Internal"], true, "{network:#}");
        assert_eq!(
            network["Containers"].as_object().unwrap().len(),
            1,
            "{network:#}"
        );
        let device = network["Options"]["com.docker.network.bridge.name"]
            .as_str()
            .unwrap();
        let seen = Command::new("ip")
            .args(["-4", "address", "show", device])
            .output()
            .unwrap();
        assert!(
            !String::from_utf8_lossy(&seen.stdout).contains("inet"),
            "{seen:?}"
        );
    }
    assert_eq!(daemon.delete(&sandboxes[0]).status, 204);
    until("the end of its network", || networks(pid).len() == 1);
    // Somebody ends the other one's container.
    for id in containers(pid) {
        docker(&["rm", "--force", &id]);
    }
    assert_eq!(daemon.delete(&sandboxes[1]).status, 204);
    until("the end of the other", || networks(pid).is_empty());
}

/// What the bridge is for: a container of the operator's own can be connected to it.
#[test]
fn whoever_has_the_engine_can_connect_others() {
    let daemon = Daemon::with(&settings(""));
    let one = daemon.sandbox(&json!({"backend": "docker", "network": []}));
    let network = networks(daemon.pid()).remove(0);
    let image = image();
    let serve = "import http.server; http.server.test(http.server.SimpleHTTPRequestHandler, port=8000, bind='0.0.0.0')";
    let args = [
        "run",
        "--detach",
        "--rm",
        "--network",
        &network,
        "--network-alias",
        "store",
    ];
    let other = docker(&[&args[..], &[&image, "python3", "-c", serve]].concat());
    let code = r#"
import time, urllib.request
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
def get():
    for _ in range(100):
        try: return direct.open("http://store:8000/etc/hostname", timeout=5).status
        except OSError as error: last = error; time.sleep(0.1)
    return str(last)
get()
"#;
    let reached = run_in(&daemon, &one, code);
    docker(&["rm", "--force", &other]);
    assert_eq!(reached, 200);
    let pid = daemon.pid();
    daemon.delete(&one);
    until("its end", || networks(pid).is_empty());
}

/// A daemon that is killed leaves networks; the next one sweeps them, unasked.
#[test]
fn what_a_killed_daemon_left_is_swept_by_the_next() {
    // On a machine of another name, as far as they know: no other test here sweeps for them.
    let mark = format!("bridge-{}", std::process::id());
    let start = |state| {
        let mut command = Command::new("unshare");
        command.args(["--uts", "sh", "-c", "hostname \"$0\" && exec \"$@\"", &mark]);
        command.arg(binary());
        Daemon::started_by(command, state, &settings(""))
    };
    let daemon = start(tempfile::tempdir().unwrap());
    daemon.sandbox(&json!({"backend": "docker", "network": "all"}));
    let pid = daemon.pid();
    assert_eq!(networks(pid).len(), 1);
    let state = daemon.kill();
    assert_eq!(networks(pid).len(), 1);
    let next = start(state);
    until("the end of what was left", || networks(pid).is_empty());
    drop(next);
}

#[test]
fn who_does_not_see_the_bridge_is_refused() {
    let image = image();
    let mut command = Command::new(binary());
    command.args([
        "run",
        "--backend",
        "docker",
        "--pull",
        "never",
        "--image",
        &image,
    ]);
    command.args([
        "--container-network",
        "bridge",
        "--network",
        "all",
        "-c",
        "1",
    ]);
    // A process that does not see the host's interfaces cannot look after them.
    let mut apart = Command::new("unshare");
    apart
        .args(["--net", "--"])
        .arg(command.get_program())
        .args(command.get_args());
    let child = apart.stderr(Stdio::piped()).spawn().unwrap();
    let process = child.id();
    let told = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&told.stderr);
    assert_eq!(told.status.code(), Some(125), "{text}");
    assert!(
        text.contains("not in this network namespace") && text.contains("loopback"),
        "{text}"
    );
    // What it had begun is gone.
    assert_eq!(networks(process), [""; 0]);
}
