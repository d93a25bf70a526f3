//! The network of a container: a loopback interface with our sockets on it, and no way to the host or to other containers.

use std::io::Read;
use std::net::{Ipv4Addr, TcpStream, UdpSocket};

use serde_json::json;

use super::super::daemon::{Daemon, HANG, until};
use super::super::servers::{Reply, Web};
use super::{docker, result, run, settings};

#[test]
fn the_network_is_ours_alone() {
    let web = Web::start(|asked| Reply::ok(format!("hello from {}", asked.path())));
    let port = web.port;
    let code = format!(
        r#"
import socket, urllib.request
print(open("/etc/resolv.conf").read().split()[:2], [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line])
print(urllib.request.urlopen("http://127.0.0.1:{port}/x").read().decode())
for target in (("172.17.0.1", 80), ("10.0.0.1", 80), ("8.8.8.8", 53)):
    try: socket.create_connection(target, 1); print("reached", target)
    except OSError as error: print(type(error).__name__)
"#
    );
    let result = result(&["--network", &format!("127.0.0.1:{port}"), "-c", &code]);
    let stdout = result["stdout"].as_str().unwrap();
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(
        lines[..2],
        ["['nameserver', '127.0.0.1'] ['lo']", "hello from /x"],
        "{result:#}"
    );
    assert!(
        !stdout.contains("reached") && lines.len() == 5,
        "{result:#}"
    );
    assert_eq!(result["report"]["network"], "proxy");
    assert_eq!(result["connections"][0]["allowed"], true, "{result:#}");
}

#[test]
fn what_is_opened_on_the_way_is_trusted_inside() {
    let ended = run(&[
        "--network",
        "site.test",
        "--intercept",
        "-c",
        "import os\nprint(os.environ['SSL_CERT_FILE'], 'BEGIN CERTIFICATE' in open(os.environ['SSL_CERT_FILE']).read())\ntry: open(os.environ['SSL_CERT_FILE'], 'a')\nexcept OSError as error: print(error.errno)",
    ]);
    assert_eq!(
        ended.parts(),
        (0, "/etc/belljar/certificates.pem True\n13\n", "")
    );
    // What a process needed goes when the next one comes, once its container has gone.
    until("the end of its volume", || {
        assert_eq!(run(&["-c", "1"]).code, 0);
        docker(&["volume", "ls", "--quiet", "--filter", "name=belljar-file"]).is_empty()
    });
}

/// What this host serves at all its addresses, and what another container does: neither is reached, directly or through the proxy, with
/// rules or with `all`. What a rule names is, from the same container.
#[test]
fn neither_the_host_nor_another_container_is_reached() {
    let web = Web::at(Ipv4Addr::UNSPECIFIED.into(), |_| Reply::ok("of the host"));
    let allowed = Web::start(|_| Reply::ok("allowed"));
    let outer = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        // Sends nothing; it only says which address of this host faces the world.
        socket.connect("192.0.2.1:9")?;
        Ok(socket.local_addr()?.ip().to_string())
    });
    let outer = outer.unwrap_or_else(|_| "127.0.0.2".into());
    // It is there for whoever has a way.
    drop(TcpStream::connect((outer.as_str(), web.port)).unwrap());
    let daemon = Daemon::with(&settings("[network]\nprivate = ['127.0.0.1']\n"));
    let run = |sandbox: &str, code: &str| {
        let body = json!({"code": code});
        daemon.post(&format!("{sandbox}/runs"), &body).ok()
    };
    let rule = format!("127.0.0.1:{}", allowed.port);
    let other = daemon.sandbox(&json!({"backend": "docker", "network": "all"}));
    let page = r#"
import http.server, socket, threading, urllib.request
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers(); self.wfile.write(b"of the other")
    def log_message(self, *_): pass
server = http.server.HTTPServer(("0.0.0.0", 0), Page)
threading.Thread(target=server.serve_forever, daemon=True).start()
own = urllib.request.build_opener(urllib.request.ProxyHandler({}))
[server.server_port, own.open(f"http://127.0.0.1:{server.server_port}/").read().decode()]
"#;
    let served = run(&other, page)["value"].clone();
    assert_eq!(served[1], "of the other", "{served}");
    for (network, expected) in [
        (json!("all"), json!([])),
        (json!([&rule]), json!(["allowed"])),
    ] {
        let one = daemon.sandbox(&json!({"backend": "docker", "network": network}));
        let code = format!(
            r#"
import os, socket, urllib.request
os.environ.pop("no_proxy", None), os.environ.pop("NO_PROXY", None)
direct = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
proxied = urllib.request.build_opener(urllib.request.ProxyHandler({{"http": os.environ["http_proxy"]}}))
def tries(opener, address):
    try: return opener.open(f"http://{{address}}/", timeout=5).read().decode()
    except OSError as error: return None
hosts = ("127.0.0.1", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", "localhost", "{outer}", "172.17.0.1", "host.docker.internal", socket.gethostname())
targets = ["{rule}"] + [f"{{host}}:{{port}}" for port in ({host}, {port}) for host in hosts]
sorted({{found for opener in (direct, proxied) for target in targets if (found := tries(opener, target))}})
"#,
            host = web.port,
            port = served[0],
        );
        let result = run(&one, &code);
        assert_eq!(
            (&result["status"], &result["value"]),
            (&json!("ok"), &expected),
            "{result:#}"
        );
    }
    // One connection said nothing: the test's own.
    assert!(web.asked().is_empty(), "{:?}", web.asked());
}

/// A port of the host's that leads to one of a container.
#[test]
fn a_port_leads_inside() {
    let daemon = Daemon::with(&settings("[network]\npublish = ['127.0.0.1']\n"));
    let asked = json!({"backend": "docker", "network": [], "publish": ["127.0.0.1:0:8000"]});
    let made = daemon.post("/v1/sandboxes", &asked).json();
    let sandbox = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    let published = made["published"][0].as_str().unwrap();
    let code = r#"
import socket, threading
server = socket.create_server(("127.0.0.1", 8000))
def serve():
    while True: server.accept()[0].sendall(b"inside")
threading.Thread(target=serve, daemon=True).start()
"#;
    let result = daemon
        .post(&format!("{sandbox}/runs"), &json!({"code": code}))
        .ok();
    assert_eq!(result["status"], "ok", "{result:#}");
    let address = published.strip_suffix(":8000").unwrap();
    let mut said = [0; 6];
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"inside");
}
