//! The network of a sandbox: what rules allow, by every way in, and nothing else. All servers are on loopback.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::backend;
use super::daemon::{Daemon, until};
use super::harness::{Ended, belljar};
use super::servers::{Ear, Names, Reply, Web};

mod own;
mod served;
mod told;

/// What the code inside uses: four ways to a server, by hand, so that it is clear which one is tried.
const WAYS: &str = r#"
import socket, ssl, sys, urllib.request, urllib.error
PROXY = ("127.0.0.1", 3128)
def page(url):
    try:
        return urllib.request.urlopen(url, timeout=10).read().decode()
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode()}"
def tunnel(target):
    link = socket.create_connection(PROXY, timeout=10)
    link.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    head = b""
    while b"\r\n\r\n" not in head:
        more = link.recv(1)
        if not more: break
        head += more
    return link, head.decode().split("\r\n")[0]
def socks(host, port):
    link = socket.create_connection(PROXY, timeout=10)
    link.sendall(b"\5\1\0")
    assert link.recv(2) == b"\5\0"
    link.sendall(b"\5\1\0\3" + bytes([len(host)]) + host.encode() + port.to_bytes(2, "big"))
    return link, link.recv(10)[1]
def get(link, host, path="/"):
    link.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    text = b""
    while True:
        try: more = link.recv(65536)
        except OSError as error: return text.decode() + f" {type(error).__name__}"
        if not more: return text.decode()
        text += more
def attempt(work):
    try: return work()
    except OSError as error: return type(error).__name__
"#;

fn code(text: &str) -> String {
    format!("{WAYS}\n{text}")
}

fn with_names(names: &Names) -> Command {
    let mut command = backend::run();
    command.env("BELLJAR_RESOLVER", names.address.to_string());
    command
}

fn json_of(command: &mut Command, network: &str, text: &str) -> Value {
    let ended: Ended = command
        .args(["--json", "--network", network, "-c", &code(text)])
        .output()
        .unwrap()
        .into();
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

fn hello() -> Web {
    Web::start(|asked| Reply::ok(format!("hello from {}", asked.path())))
}

#[test]
fn by_every_way() {
    let (web, names) = (hello(), Names::start(&[("site.test", &["127.0.0.1"])]));
    let port = web.port;
    let rules = format!("site.test:{port},127.0.0.1:{port}");
    let text = format!(
        r#"
print(page("http://site.test:{port}/proxy"))
link, status = tunnel("SITE.test.:{port}"); print(status, get(link, "site.test:{port}", "/tunnel").splitlines()[-1])
link, status = socks("site.test", {port}); print(status, get(link, "site.test", "/socks").splitlines()[-1])
address = socket.getaddrinfo("site.test", {port}, socket.AF_INET)[0][4]
print(get(socket.create_connection(address), "site.test", "/direct").splitlines()[-1])
link, status = tunnel("%s:%d" % address); print(status, get(link, "site.test", "/stand-in").splitlines()[-1])
body = urllib.request.Request("http://site.test:{port}/post", data=b"x" * 300000)
print(urllib.request.urlopen(body).read().decode())
"#
    );
    let result = json_of(&mut with_names(&names), &rules, &text);
    assert_eq!(
        result["stdout"],
        "hello from /proxy\nHTTP/1.1 200 Connection established hello from /tunnel\n0 hello from /socks\n\
         hello from /direct\nHTTP/1.1 200 Connection established hello from /stand-in\nhello from /post\n",
        "{result:#}"
    );
    assert_eq!(result["report"]["network"], "proxy");
    let tried = result["connections"].as_array().unwrap();
    let is_name = |one: &&Value| one["port"] == 53;
    let (asked, tried): (Vec<_>, Vec<_>) = tried.iter().partition(is_name);
    // Whoever knows no proxy asks for the name first.
    assert_eq!((asked.len(), tried.len()), (1, 6), "{result:#}");
    for one in &tried {
        assert_eq!(
            (&one["allowed"], &one["port"]),
            (&json!(true), &json!(port))
        );
        assert_eq!(
            (&one["address"], &one["reason"]),
            (&json!("127.0.0.1"), &Value::Null)
        );
        assert!(one["bytes_received"].as_u64().unwrap() > 50, "{one}");
        assert!(one["duration_ms"].as_f64().unwrap() > 0.0, "{one}");
    }
    assert!(tried[5]["bytes_sent"].as_u64().unwrap() > 300_000);
    let asked = web.asked();
    assert_eq!(asked[5].body.len(), 300_000);
    // The server sees itself by the name that was asked for, and nothing of the proxy.
    assert_eq!(asked[0].headers["host"], format!("site.test:{port}"));
    assert!(
        !asked
            .iter()
            .any(|one| one.headers.contains_key("proxy-connection"))
    );
    // Six connections, one question.
    assert_eq!(names.asked(), ["site.test"]);
}

#[test]
fn localhost_is_the_hosts_where_a_rule_names_it() {
    let web = hello();
    let port = web.port;
    let text = format!(
        r#"print(page("http://localhost:{port}/a"), attempt(lambda: page("http://127.0.0.1:1/")))"#
    );
    let result = json_of(&mut backend::run(), &format!("localhost:{port}"), &text);
    assert_eq!(result["stdout"], "hello from /a URLError\n", "{result:#}");
}

#[test]
fn what_no_rule_names_is_refused_and_told() {
    let (web, names) = (
        hello(),
        Names::start(&[
            ("site.test", &["127.0.0.1"]),
            ("other.test", &["127.0.0.1"]),
        ]),
    );
    let port = web.port;
    let rules = format!("site.test:{port},127.0.0.1:{port}");
    let text = format!(
        r#"
print(page("http://other.test:{port}/"))
for target in ("other.test:{port}", "site.test:22", "site.test.evil.test:{port}", "x@site.test:{port}", "127.1:{port}",
               "2130706433:{port}", "0x7f000001:{port}", "0177.0.0.1:{port}", "[::ffff:127.0.0.1]:{port}", "[::1]:{port}",
               "10.0.0.1:{port}", "169.254.169.254:80", "[64:ff9b::7f00:1]:{port}", "[2002:7f00:1::]:{port}", "100.64.0.1:{port}"):
    print(target, tunnel(target)[1].split()[1])
print(socks("other.test", {port})[1], socks("127.1", {port})[1], socks("[::1]", {port})[1])
print(attempt(lambda: socket.getaddrinfo("other.test", 80)), attempt(lambda: socket.create_connection(("93.184.216.34", 80), 2)))
"#
    );
    let result = json_of(&mut with_names(&names), &rules, &text);
    let stdout = result["stdout"].as_str().unwrap();
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(
        lines[0],
        format!("403 belljar: no rule allows other.test:{port}"),
        "{result:#}"
    );
    let refused = lines[2..17].iter().all(|line| line.ends_with(" 403"));
    assert!(refused, "{stdout}");
    assert_eq!(lines[17..], ["2 2 2", "gaierror OSError"], "{stdout}");
    assert!(web.asked().is_empty() && names.asked().is_empty());
    let tried = result["connections"].as_array().unwrap();
    assert!(
        tried
            .iter()
            .all(|one| one["allowed"] == false && one["reason"].is_string())
    );
    assert_eq!(tried[0]["host"], "other.test");
    let lookup = tried.iter().find(|one| one["port"] == 53).unwrap();
    assert_eq!(lookup["reason"], "no rule allows other.test");
}

#[test]
fn an_empty_list_and_all_are_what_they_say() {
    let (web, names) = (hello(), Names::start(&[("site.test", &["127.0.0.1"])]));
    let port = web.port;
    let text = format!(
        r#"print(page("http://site.test:{port}/"), tunnel("127.0.0.1:{port}")[1], tunnel("localhost:{port}")[1])"#
    );
    let result = json_of(&mut with_names(&names), "all", &text);
    let stdout = result["stdout"].as_str().unwrap();
    assert!(
        stdout.starts_with("403 belljar: site.test is 127.0.0.1, which is loopback"),
        "{stdout}"
    );
    assert_eq!(stdout.matches("403").count(), 3, "{stdout}");
    let daemon = Daemon::start();
    let body = json!({"code": code(&text), "network": []});
    let result = daemon.post("/v1/runs", &body).ok();
    assert_eq!(
        result["stdout"].as_str().unwrap().matches("403").count(),
        3,
        "{result:#}"
    );
    assert!(web.asked().is_empty());
}

#[test]
fn a_name_that_leads_elsewhere_the_second_time() {
    let web = hello();
    let port = web.port;
    let names = Names::start(&[
        ("rebind.test", &["203.0.113.7", "127.0.0.1"]),
        ("inside.test", &["127.0.0.1"]),
    ]);
    let rules = format!("rebind.test:{port},inside.test:{port}");
    let text = format!(
        r#"
socket.getaddrinfo("rebind.test", {port}, socket.AF_INET)
for _ in range(3): print(tunnel("rebind.test:{port}")[1].split()[1])
print(page("http://inside.test:{port}/"))
"#
    );
    let result = json_of(&mut with_names(&names), &rules, &text);
    // An address for documentation at first: refused as such, and never asked for again.
    let stdout = result["stdout"].as_str().unwrap();
    assert!(
        stdout
            .starts_with("403\n403\n403\n403 belljar: inside.test is 127.0.0.1, which is loopback"),
        "{result:#}"
    );
    assert_eq!(names.asked(), ["rebind.test", "inside.test"]);
    assert!(web.asked().is_empty());
}

#[test]
fn each_hop_of_a_redirect_is_a_new_question() {
    let names = Names::start(&[("site.test", &["127.0.0.1"])]);
    let web = Web::start(|asked| match asked.path() {
        "/inside" => Reply(
            "302 Found\r\nLocation: http://169.254.169.254/latest".into(),
            Vec::new(),
        ),
        "/other" => Reply(
            "302 Found\r\nLocation: http://other.test/".into(),
            Vec::new(),
        ),
        _ => Reply::ok("here"),
    });
    let port = web.port;
    let text = format!(
        r#"print(page("http://site.test:{port}/inside")); print(page("http://site.test:{port}/other"))"#
    );
    let rules = format!("site.test:{port},127.0.0.1:{port}");
    let result = json_of(&mut with_names(&names), &rules, &text);
    let stdout = result["stdout"].as_str().unwrap();
    assert!(
        stdout.starts_with("403 belljar: no rule allows 169.254.169.254:80"),
        "{stdout}"
    );
    assert!(
        stdout.contains("403 belljar: no rule allows other.test:80"),
        "{stdout}"
    );
    let tried = result["connections"].as_array().unwrap();
    let allowed: Vec<_> = tried.iter().map(|one| one["allowed"] == true).collect();
    assert_eq!(allowed, [true, false, true, false]);
}

#[test]
fn the_server_that_tls_names_is_the_host_of_the_connection() {
    let ear = Ear::start();
    let port = ear.port;
    let names = Names::start(&[("site.test", &["127.0.0.1"])]);
    let text = format!(
        r#"
context = ssl.create_default_context()
def shake(link, name):
    link.settimeout(2)
    try: context.wrap_socket(link, server_hostname=name)
    except OSError as error: return type(error).__name__
for name in ("other.test", "site.test.other.test"):
    print(shake(tunnel("site.test:{port}")[0], name), shake(socks("site.test", {port})[0], name))
link, _ = tunnel("site.test:{port}"); print(get(link, "other.test"))
print(shake(tunnel("site.test:{port}")[0], "Site.TEST"))
"#
    );
    let rules = format!("site.test:{port},127.0.0.1:{port}");
    let result = json_of(&mut with_names(&names), &rules, &text);
    let tried = result["connections"].as_array().unwrap();
    assert_eq!(tried.len(), 6, "{result:#}");
    for one in &tried[..5] {
        assert_eq!(one["allowed"], false, "{one}");
        assert!(
            one["reason"].as_str().unwrap().contains("other.test"),
            "{one}"
        );
    }
    assert_eq!(tried[5]["allowed"], true, "{result:#}");
    until("all of it has arrived", || {
        let heard = ear.heard();
        heard.len() >= 6 && heard.iter().any(|heard| heard.len() > 100)
    });
    let heard = ear.heard();
    // In whatever order they ended.
    let spoken: Vec<_> = heard.iter().filter(|heard| !heard.is_empty()).collect();
    assert!(heard.len() == 6 && spoken.len() == 1, "{heard:?}");
    assert!(spoken[0].len() > 100 && spoken[0][0] == 22, "{heard:?}");
}

#[test]
fn the_host_of_a_request_is_that_of_the_connection() {
    // A server that hears out whoever speaks, and says no to whatever it is asked to change to.
    let ear = Ear::start();
    let (web, names) = (hello(), Names::start(&[("site.test", &["127.0.0.1"])]));
    let (port, quiet) = (web.port, ear.port);
    let text = format!(
        r#"
import time
def end(link):
    link.settimeout(30); text = b""
    try:
        while more := link.recv(4096): text += more
    except OSError: pass
    return text
def spoken(*parts):
    link, _ = tunnel("site.test:{quiet}")
    for part in parts:
        try: link.sendall(part.encode())
        except OSError: break
        if len(parts) > 1: time.sleep(0.5)
    print(end(link))
spoken("PROPFIND / HTTP/1.1\r\nHost: other.test\r\n\r\n")
spoken("GET / HTTP/1.1\nHost: other.test\n\n")
spoken("\r\nGET / HTTP/1.1\r\nHost: other.test\r\n\r\n")
spoken("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
spoken("GET http://other.test/ HTTP/1.1\r\nHost: site.test\r\n\r\n")
spoken("PROP", "FIND / HTTP/1.1\r\nHost: other.test\r\n\r\n")
link, _ = tunnel("site.test:{port}")
link.sendall(b"GET /first HTTP/1.1\r\nHost: site.test\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nGET /second HTTP/1.1\r\nHost: other.test\r\n\r\n")
print(b"second" in end(link))
link, _ = tunnel("site.test:{quiet}"); link.sendall(b"half a word"); time.sleep(0.5); link.sendall(b" and more\n"); link.shutdown(1)
"#
    );
    let rules = [port, quiet].map(|port| format!("site.test:{port},127.0.0.1:{port}"));
    let result = json_of(&mut with_names(&names), &rules.join(","), &text);
    assert_eq!(
        result["stdout"],
        format!("{}False\n", "b''\n".repeat(6)),
        "{result:#}"
    );
    let tried = result["connections"].as_array().unwrap();
    for one in &tried[..6] {
        assert!(
            one["allowed"] == false && one["reason"].is_string(),
            "{one}"
        );
    }
    let paths: Vec<_> = web
        .asked()
        .iter()
        .map(|one| one.path().to_owned())
        .collect();
    assert_eq!(paths, ["/first"]);
    until("all of it has arrived", || {
        let heard = ear.heard();
        heard.iter().any(|heard| heard == b"half a word and more\n")
    });
    let heard = ear.heard();
    assert!(
        !heard.iter().any(|heard| heard.contains(&b'/')),
        "{heard:?}"
    );
}

/// What waits in sockets is memory of the host, whichever program they are.
#[test]
fn what_waits_in_sockets_is_bounded() {
    const MOST: u64 = 40 << 20;
    let held = || -> u64 {
        let text = fs::read_to_string("/proc/net/sockstat").unwrap();
        let line = text.lines().find(|line| line.starts_with("UDP: ")).unwrap();
        let pages: u64 = line.rsplit_once(' ').unwrap().1.parse().unwrap();
        pages * 4096
    };
    let fill = "
import socket, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
kept = []
for _ in range(300):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    one.bind(('127.0.0.1', 0))
    kept.append(one)
    for _ in range(30):
        sender.sendto(b'x' * 60000, one.getsockname())
print('full', flush=True)
time.sleep(60)
";
    let before = held();
    let mut filled = belljar()
        .args([
            "run",
            "--network",
            "localhost:9",
            "--memory",
            "64m",
            "-c",
            fill,
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(filled.stdout.take().unwrap());
    said.read_line(&mut line).unwrap();
    let now = held();
    filled.kill().unwrap();
    filled.wait().unwrap();
    assert_eq!(line, "full\n");
    assert!(now < before + MOST, "{now} bytes, {before} before");
}

#[test]
fn one_request_for_each_connection() {
    // A second request on the same connection could be for another host, and would not be looked at.
    let (web, names) = (hello(), Names::start(&[("site.test", &["127.0.0.1"])]));
    let port = web.port;
    let text = format!(
        r#"
link = socket.create_connection(PROXY)
one = "GET http://site.test:{port}/%s HTTP/1.1\r\nHost: site.test\r\nConnection: keep-alive\r\n\r\n"
link.sendall((one % "first" + "GET http://other.test/second HTTP/1.1\r\nHost: x\r\n\r\n").encode())
def rest(link):
    text = b""
    try:
        while more := link.recv(4096): text += more
    except OSError: pass
    return text.decode()
text = rest(link)
print("second" in text)
for head in ("POST http://site.test:{port}/ HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
             "GET http://site.test:{port}/ HTTP/1.1\r\n folded: x\r\n\r\n", "GET / HTTP/1.1\r\nHost: site.test\r\n\r\n",
             "GET http://site.test:{port}/ HTTP/1.1\r\nX: " + "y" * 100000 + "\r\n\r\n", "nonsense\r\n\r\n", "GET http://x@site.test:{port}/ HTTP/1.1\r\n\r\n", "GET ftp://site.test/ HTTP/1.1\r\n\r\n"):
    link = socket.create_connection(PROXY); link.settimeout(5)
    try: link.sendall(head.encode())
    except OSError: pass
    print(rest(link).split(" ")[1])
"#
    );
    let rules = format!("site.test:{port},127.0.0.1:{port}");
    let result = json_of(&mut with_names(&names), &rules, &text);
    assert_eq!(
        result["stdout"], "False\n400\n400\n400\n431\n400\n400\n400\n",
        "{result:#}"
    );
    assert!(
        web.asked().iter().all(|asked| asked.path() == "/first"),
        "{:?}",
        web.asked()
    );
}
