//! Addresses of the machine itself that are public: in a network of the test's own, which has no way out.

use std::net::IpAddr;
use std::process::Command;

use serde_json::Value;

use crate::suite::harness::{Ended, need_root, need_tool};
use crate::suite::network::{code, with_names};
use crate::suite::servers::{Names, Reply, Web};

const ADDRESS: &str = "93.184.216.34";
const INSIDE: &str = "BELLJAR_TEST_OWN_NETWORK";

/// Makes the address the loopback interface's second, for itself alone (`/32`), and becomes another program. By the system calls
/// of old (netdevice(7)): they need no tool.
const SET_UP: &str = r#"
import fcntl, os, socket, struct, sys
UP, NETMASK, ADDRESS, FLAGS = 1, 0x891c, 0x8916, 0x8914
with socket.socket() as link:
    def ask(name, what, value): fcntl.ioctl(link, what, struct.pack("16s24s", name, value))
    def address(text): return struct.pack("HH4s", socket.AF_INET, 0, socket.inet_aton(text))
    ask(b"lo", FLAGS, struct.pack("H", UP))
    ask(b"lo:1", ADDRESS, address(sys.argv[1]))
    ask(b"lo:1", NETMASK, address("255.255.255.255"))
os.execv(sys.argv[2], sys.argv[2:])
"#;

#[test]
fn all_is_not_this_machine() {
    if std::env::var_os(INSIDE).is_some() {
        return from_inside();
    }
    need_root("to make a network namespace");
    need_tool("unshare", "util-linux");
    let ended: Ended = Command::new("unshare")
        .args(["--net", "python3", "-c", SET_UP, ADDRESS])
        .arg(std::env::current_exe().unwrap())
        .args(["--nocapture", "all_is_not_this_machine"])
        .env(INSIDE, "1")
        .output()
        .unwrap()
        .into();
    assert_eq!(ended.code, 0, "{}\n{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains(" 1 passed"), "{ended:?}");
}

/// The same test, where the address is this machine's.
fn from_inside() {
    let here: IpAddr = ADDRESS.parse().unwrap();
    let web = Web::at(here, |_| Reply::ok("a service of this machine"));
    let names = Names::start(&[("site.test", &[ADDRESS])]);
    let port = web.port;
    let text = code(&format!(
        r#"
print(page("http://{ADDRESS}:{port}/"))
print(page("http://site.test:{port}/"))
print(tunnel("{ADDRESS}:{port}")[1].split()[1], socks("site.test", {port})[1])
"#
    ));
    let tried = |network: &str| -> Value {
        let mut command = with_names(&names);
        command.args(["--json", "--network", network, "-c", &text]);
        let ended: Ended = command.output().unwrap().into();
        serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
    };
    // By a name alone just as little.
    for network in ["all", &format!("site.test:{port}")] {
        let result = tried(network);
        let stdout = result["stdout"].as_str().unwrap();
        let refused = format!("site.test is {ADDRESS}, which is this machine's own");
        assert!(stdout.contains(&refused), "{result:#}");
        assert!(stdout.ends_with("\n403 2\n"), "{result:#}");
        let list = result["connections"].as_array().unwrap();
        assert!(list.iter().all(|one| one["allowed"] == false), "{result:#}");
    }
    assert!(web.asked().is_empty());
    // So it is the rule that keeps them apart.
    let result = tried(&format!("{ADDRESS}:{port},site.test:{port}"));
    let stdout = result["stdout"].as_str().unwrap();
    assert!(
        stdout.starts_with("a service of this machine\na service of this machine\n200 0\n"),
        "{result:#}"
    );
}
