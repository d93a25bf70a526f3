//! Keys that are added on the way out, to plain requests and to encrypted ones, and are seen nowhere else.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::daemon::Daemon;
use super::harness::{Ended, belljar, directory, need_tool};
use super::servers::{Names, Reply, Web};

const KEY: &str = "Bearer hush-hush-7f3a";

fn settings(names: &Names) -> String {
    format!(
        "[network]\nprivate = ['127.0.0.1']\nresolver = '{}'\n",
        names.address
    )
}

#[test]
fn a_key_reaches_the_server_and_nobody_else() {
    let names = Names::start(&[("api.test", &["127.0.0.1"]), ("other.test", &["127.0.0.1"])]);
    let web = Web::start(|asked| {
        let known = asked
            .headers
            .get("authorization")
            .is_some_and(|sent| sent == KEY);
        match asked.path() {
            "/away" => Reply(
                "302 Found\r\nLocation: http://other.test/".into(),
                Vec::new(),
            ),
            _ => Reply::ok(if known { "welcome" } else { "who are you?" }),
        }
    });
    let port = web.port;
    let daemon = Daemon::with(&settings(&names));
    let network = json!([
        {"host": format!("api.test:{port}"), "headers": {"Authorization": KEY}, "env": "API_KEY"},
        format!("other.test:{port}"), format!("127.0.0.1:{port}"),
    ]);
    let code = format!(
        r#"
import os, socket, urllib.request
def page(host, **headers):
    return urllib.request.urlopen(urllib.request.Request(f"http://{{host}}:{port}/", headers=headers)).read().decode()
print(page("api.test"), page("api.test", Authorization=os.environ["API_KEY"]), page("other.test"), os.environ["API_KEY"])
link = socket.create_connection(socket.getaddrinfo("api.test", {port}, socket.AF_INET)[0][4])
link.sendall(b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n")
print(link.makefile().read().splitlines()[-1])
link = socket.create_connection(("127.0.0.1", 3128))
link.sendall(b"TRACE http://api.test:{port}/ HTTP/1.1\r\nHost: api.test\r\n\r\n")
print(link.recv(100).split()[1])
print("hush" in str(os.environ), "hush" in open("/proc/self/environ").read())
"#
    );
    let body = json!({"code": code, "network": network});
    let answer = daemon.post("/v1/runs", &body);
    let result = answer.ok();
    assert_eq!(
        result["stdout"],
        "welcome welcome who are you? belljar-placeholder\nwelcome\nb'403'\nFalse False\n",
        "{result:#}"
    );
    // The second request came with the placeholder, which the server has not seen.
    assert!(web.asked().iter().all(|one| {
        one.headers
            .get("authorization")
            .is_none_or(|sent| sent == KEY)
    }));
    let made = daemon.post("/v1/sandboxes", &json!({"network": network}));
    let id = made.ok()["id"].as_str().unwrap().to_owned();
    let run = result["id"].as_str().unwrap();
    for text in [
        answer.text(),
        made.text(),
        daemon.get(&format!("/v1/sandboxes/{id}")).text(),
        daemon.get(&format!("/v1/runs/{run}")).text(),
        daemon.get("/v1/runs").text(),
        daemon.get(&format!("/v1/runs/{run}/debug")).text(),
        daemon.log(),
    ] {
        assert!(!text.contains("hush-hush"), "{text}");
    }
    assert!(
        !contains(daemon.state.path(), b"hush-hush"),
        "it is in a file"
    );
    assert_eq!(
        daemon.get(&format!("/v1/sandboxes/{id}")).ok()["network"][0]["headers"],
        json!({"Authorization": "…"})
    );
}

/// Whether any file below has these bytes.
fn contains(place: &Path, what: &[u8]) -> bool {
    fs::read_dir(place).unwrap().flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return contains(&path, what);
        }
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        // The settings were written by the test.
        let bytes = if is_file {
            fs::read(&path).unwrap_or_default()
        } else {
            Vec::new()
        };
        bytes.windows(what.len()).any(|window| window == what)
    })
}

const SERVER: &str = r#"
import http.server, ssl, sys
class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = b"welcome" if self.headers["Authorization"] == "Bearer hush-hush-7f3a" else b"who are you?"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1] + ".pem", sys.argv[1] + ".key")
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
"#;

struct Served(Child, u16);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(place: &Path, name: &str) -> Served {
    use std::io::{BufRead, BufReader};
    let mut child = Command::new("/usr/bin/python3")
        .args(["-c", SERVER, name])
        .current_dir(place)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    Served(child, line.trim().parse().unwrap())
}

/// An authority, and certificates of it for two names.
fn certificates() -> tempfile::TempDir {
    need_tool("openssl", "openssl");
    let place = directory(&[]);
    let script = r#"
set -e
key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
openssl req -x509 $key -keyout ca.key -out ca.pem -days 2 -subj /CN=ca -addext basicConstraints=critical,CA:TRUE 2>/dev/null
for name in api.test wrong.test; do
    openssl req $key -keyout $name.key -out $name.csr -subj /CN=$name 2>/dev/null
    echo "subjectAltName=DNS:$name" > ext
    openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out $name.pem -extfile ext 2>/dev/null
done
"#;
    let done = Command::new("/bin/sh")
        .args(["-c", script])
        .current_dir(place.path())
        .status();
    assert!(done.unwrap().success());
    place
}

fn fetch(port: u16, names: &Names, place: &Path, intercept: bool) -> Value {
    let code = format!(
        r#"
import ssl, urllib.request, urllib.error
try: print(urllib.request.urlopen("https://api.test:{port}/", timeout=10).read().decode())
except urllib.error.HTTPError as error: print(error.code, error.read().decode())
except OSError as error: print(error)
"#
    );
    let rules = format!("api.test:{port},127.0.0.1:{port}");
    let header = format!("api.test:{port}=Authorization=KEY_FOR_TESTS");
    let mut command = belljar();
    command
        .args([
            "run",
            "--json",
            "--network",
            &rules,
            "--network-header",
            &header,
            "-c",
            &code,
        ])
        .args(intercept.then_some("--intercept"))
        .env("KEY_FOR_TESTS", KEY)
        .env("SSL_CERT_FILE", place.join("ca.pem"))
        .env("BELLJAR_RESOLVER", names.address.to_string());
    let ended: Ended = command.output().unwrap().into();
    assert!(
        !ended.stdout.contains("hush") && !ended.stderr.contains("hush"),
        "{ended:?}"
    );
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

#[test]
fn a_key_for_what_is_encrypted() {
    let place = certificates();
    let names = Names::start(&[("api.test", &["127.0.0.1"])]);
    let server = serve(place.path(), "api.test");
    let result = fetch(server.1, &names, place.path(), true);
    assert_eq!(result["stdout"], "welcome\n", "{result:#}");
    assert_eq!(result["connections"][0]["allowed"], true);
    // Without, the connection is the code's own, and it does not know this server's authority.
    let result = fetch(server.1, &names, place.path(), false);
    assert!(
        result["stdout"]
            .as_str()
            .unwrap()
            .contains("CERTIFICATE_VERIFY_FAILED"),
        "{result:#}"
    );
    // The key goes to nobody who cannot show who they are.
    let wrong = serve(place.path(), "wrong.test");
    let result = fetch(wrong.1, &names, place.path(), true);
    let stdout = result["stdout"].as_str().unwrap();
    assert!(
        stdout.starts_with("502 belljar: no TLS with api.test"),
        "{result:#}"
    );
    let reason = result["connections"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("certificate"), "{reason}");
}
