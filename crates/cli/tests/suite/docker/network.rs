//! The network of a container: a loopback interface with our sockets on it, and no way to the host or to other containers.

use std::net::UdpSocket;

use serde_json::json;

use super::super::daemon::{Daemon, until};
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

/// With `all`, directly and through the proxy: neither what this host page for itself nor what another container does.
#[test]
fn neither_the_host_nor_another_container_is_reached() {
    let web = Web::start(|_| Reply::ok("of the host"));
    let outer = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        // Sends nothing; it only says which address of this host faces the world.
        socket.connect("192.0.2.1:9")?;
        Ok(socket.local_addr()?.ip().to_string())
    });
    let outer = outer.unwrap_or_else(|_| "127.0.0.2".into());
    let daemon = Daemon::with(&settings(""));
    let asked = json!({"backend": "docker", "network": "all"});
    let (one, other) = (daemon.sandbox(&asked), daemon.sandbox(&asked));
    let run = |sandbox: &str, code: &str| {
        let body = json!({"code": code});
        daemon.post(&format!("{sandbox}/runs"), &body).ok()
    };
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
    let served = run(&one, page)["value"].clone();
    assert_eq!(served[1], "of the other", "{served}");
    let (host, port) = (web.port, &served[0]);
    let code = format!(
        r#"
import socket, urllib.request
direct = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
proxied = urllib.request.build_opener()
def tries(opener, address):
    try: return opener.open(f"http://{{address}}/", timeout=5).read().decode()
    except OSError as error: return None
targets = [f"{{host}}:{{port}}" for port in ({host}, {port}) for host in ("127.0.0.1", "localhost", "{outer}", socket.gethostname(), "172.17.0.1")]
[found for opener in (direct, proxied) for target in targets if (found := tries(opener, target))]
"#
    );
    let result = run(&other, &code);
    assert_eq!(
        (&result["status"], &result["value"]),
        (&json!("ok"), &json!([])),
        "{result:#}"
    );
    assert!(web.asked().is_empty(), "{:?}", web.asked());
}
