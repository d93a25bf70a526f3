//! An ordinary user: with a part of the cgroup tree delegated, without one, and without cgroups at all.
//!
//! Needs root, to become that user. The user has an id and a home but no entry in the user database, so that nothing
//! has to be made on the host, or to be removed from it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::harness::{Ended, binary, directory, marker, need_root, need_tool};
use super::host::{cgroup_mounts, eventually};
use super::image_files::python_root;

const UID: u32 = 61_234;

/// An ordinary user with a home of its own and copies of what it shall run.
struct User {
    home: tempfile::TempDir,
    groups: Vec<PathBuf>,
}

impl User {
    fn new() -> Self {
        need_root("to become an ordinary user");
        need_tool("setpriv", "util-linux");
        let home = directory(&[]);
        // Where this was built may be below a directory that others cannot enter.
        for (from, name) in [
            (binary(), "belljar"),
            (std::env::current_exe().unwrap(), "tests"),
        ] {
            let to = home.path().join(name);
            fs::copy(from, &to).unwrap();
            fs::set_permissions(&to, Permissions::from_mode(0o755)).unwrap();
        }
        // For leases: those of other tests are not its business.
        fs::create_dir(home.path().join("run")).unwrap();
        for owned in [home.path().to_owned(), home.path().join("run")] {
            chown(owned, Some(UID), Some(UID)).unwrap();
        }
        Self {
            home,
            groups: Vec::new(),
        }
    }

    /// With a subtree of every hierarchy that Belljar uses, as a service manager would delegate it.
    fn delegated() -> Self {
        let mut user = Self::new();
        let name = marker();
        for base in delegation_bases() {
            let top = base.join(&name);
            fs::create_dir(&top).unwrap_or_else(|error| panic!("{}: {error}", top.display()));
            user.groups.push(top.clone());
            let leaf = if base.join("cgroup.controllers").exists() {
                top.join("session")
            } else {
                top.clone()
            };
            if leaf != top {
                fs::create_dir(&leaf).unwrap();
            }
            for group in [&top, &leaf] {
                for file in [
                    "",
                    "cgroup.procs",
                    "cgroup.threads",
                    "cgroup.subtree_control",
                    "tasks",
                ] {
                    let path = if file.is_empty() {
                        group.clone()
                    } else {
                        group.join(file)
                    };
                    if path.exists() {
                        chown(&path, Some(UID), Some(UID)).unwrap();
                    }
                }
            }
        }
        user
    }

    /// A command as this user, in its groups.
    fn command(&self, program: &str) -> Command {
        let mut script = String::new();
        for top in &self.groups {
            let leaf = top.join("session");
            let group = if leaf.is_dir() { &leaf } else { top };
            script.push_str("echo 0 > ");
            script.push_str(group.to_str().unwrap());
            script.push_str("/cgroup.procs && ");
        }
        script.push_str(
            "cd \"$HOME\" && exec setpriv --reuid $0 --regid $0 --clear-groups --inh-caps=-all -- \"$@\"",
        );
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", &script, &UID.to_string()])
            .arg(self.home.path().join(program))
            .env_clear()
            .env("HOME", self.home.path())
            .env("XDG_RUNTIME_DIR", self.home.path().join("run"))
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .stdin(std::process::Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Ended {
        self.command("belljar")
            .arg("run")
            .args(args)
            .output()
            .unwrap()
            .into()
    }

    fn json(&self, args: &[&str]) -> Value {
        let ended = self.run(&[&["--json"], args].concat());
        serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
    }

    /// The tests of some modules, in this user's shoes.
    fn tests(&self, filter: &str) {
        let output = self
            .command("tests")
            .args([filter, "--test-threads=2"])
            .env("BELLJAR_BIN", self.home.path().join("belljar"))
            .env("TMPDIR", self.home.path())
            .output()
            .unwrap();
        let ended: Ended = output.into();
        assert_eq!(ended.code, 0, "{}\n{}", ended.stdout, ended.stderr);
        assert!(
            !ended.stdout.contains(" 0 passed"),
            "no test has {filter} in its name: {}",
            ended.stdout
        );
    }

    fn groups_inside(&self) -> Vec<PathBuf> {
        let below = |top: &PathBuf| {
            fs::read_dir(top)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path())
        };
        let is_box = |path: &PathBuf| {
            path.is_dir()
                && path
                    .file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with("belljar-"))
        };
        self.groups.iter().flat_map(below).filter(is_box).collect()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        for top in &self.groups {
            for below in fs::read_dir(top)
                .into_iter()
                .flatten()
                .flatten()
                .filter(|entry| entry.path().is_dir())
            {
                eventually_removed(&below.path());
            }
            eventually_removed(top);
        }
    }
}

/// A group is busy for a moment after its last process has gone.
fn eventually_removed(dir: &Path) {
    for _ in 0..200 {
        match fs::remove_dir(dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            _ => return,
        }
    }
}

/// Directories below which a subtree can be delegated: of version 2 its root where it has the controllers, else, and of
/// version 1, where this process is.
fn delegation_bases() -> Vec<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let path_of = |controller: &str| {
        own.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (names, path) = (parts.next()?, parts.next()?);
            names
                .split(',')
                .any(|name| name == controller)
                .then(|| path.trim_start_matches('/').to_owned())
        })
    };
    let controllers = ["memory", "cpu", "cpuacct", "pids"];
    let mut bases = Vec::new();
    for mount in cgroup_mounts() {
        if let Ok(available) = fs::read_to_string(mount.join("cgroup.controllers")) {
            if available.split_whitespace().any(|word| word == "memory") {
                fs::write(mount.join("cgroup.subtree_control"), "+memory +pids +cpu").unwrap();
                return vec![mount];
            }
            bases.push(mount.join(path_of("").unwrap_or_default()));
        } else {
            let name = mount.file_name().unwrap().to_string_lossy().into_owned();
            if let Some(controller) = controllers
                .iter()
                .find(|controller| name.split(',').any(|word| word == **controller))
            {
                bases.push(mount.join(path_of(controller).unwrap_or_default()));
            }
        }
    }
    bases
}

#[test]
fn it_runs_with_a_delegated_subtree() {
    let user = User::delegated();
    let result = user.json(&["-c", "print('hello')"]);
    assert_eq!(result["stdout"], "hello\n", "{result:#}");
    assert_eq!(result["report"]["mode"], "rootless");
    assert_eq!(result["report"]["uid"], UID);
    assert!(result["report"]["cgroup"].is_object(), "{result:#}");
    eventually("its groups are removed", || {
        user.groups_inside()
            .iter()
            .all(|path| path.ends_with("belljar-rest"))
    });
}

#[test]
fn limits_hold() {
    User::delegated().tests("limits::");
}

#[test]
fn isolation_holds() {
    let user = User::delegated();
    user.tests("isolation::");
}

#[test]
fn the_network_is_reached_by_name() {
    let user = User::delegated();
    user.tests("network::by_every_way");
    // Its keeper has power over the networks of its sandboxes.
    user.tests("ports_come_with_a_change_of_rules");
    user.tests("the_host_listens_for_a_port_inside");
    user.tests("network::told::");
}

#[test]
fn packages_are_installed() {
    let user = User::delegated();
    user.tests("packages::installed_once_shared_and_verified");
    user.tests("packages::pip_in_a_session_whose_rules_allow_the_index");
    user.tests("packages::the_pool_of_a_template_has_them_loaded");
}

#[test]
fn nothing_survives() {
    User::delegated().tests("lifecycle::");
}

#[test]
fn files_and_streams_work() {
    let user = User::delegated();
    user.tests("files::");
    user.tests("streams::");
}

#[test]
fn without_delegation_it_refuses_and_says_what_to_do() {
    let ended = User::new().run(&["-c", "print('must not run')"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (125, ""), "{ended:?}");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    for word in ["belljar: ", "cgroup", "to provide it", "--weaken cgroups"] {
        assert!(ended.stderr.contains(word), "no {word:?} in {ended:?}");
    }
}

#[test]
fn a_daemon_says_so_when_it_starts() {
    let output = User::new()
        .command("belljar")
        .args(["serve", "--listen", "", "--idle-exit", "100ms"])
        .output()
        .unwrap();
    let ended: Ended = output.into();
    let said = format!("{}{}", ended.stdout, ended.stderr);
    let mut refused = said.lines().filter(|line| line.contains("will be refused"));
    let cgroups = refused.find(|line| line.contains("\"missing\":\"cgroups\""));
    let cgroups = cgroups.unwrap_or_else(|| panic!("{ended:?}"));
    assert!(cgroups.contains("\"fix\":\"run it "), "{cgroups}");
    assert!(cgroups.contains("in the daemon's settings"), "{cgroups}");
    assert!(!said.contains("--weaken"), "{said}");
}

#[test]
fn the_doctor_says_so_too() {
    let examined = |user: &User| -> (Ended, Value) {
        let ended: Ended = user
            .command("belljar")
            .args(["doctor", "--json"])
            .output()
            .unwrap()
            .into();
        let value = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended:?}"));
        (ended, value)
    };
    let (ended, found) = examined(&User::delegated());
    assert_eq!(
        (ended.code, &found["ok"]),
        (0, &Value::Bool(true)),
        "{found:#}"
    );
    let (ended, found) = examined(&User::new());
    assert_eq!(
        (ended.code, &found["ok"]),
        (1, &Value::Bool(false)),
        "{found:#}"
    );
    let checks = found["checks"].as_array().unwrap();
    let cgroups = checks
        .iter()
        .find(|check| check["name"] == "cgroups")
        .unwrap();
    assert_eq!(cgroups["ok"], false, "{found:#}");
    assert!(
        cgroups["fix"]
            .as_str()
            .is_some_and(|fix| fix.contains("--weaken cgroups")),
        "{found:#}"
    );
}

#[test]
fn cgroups_can_be_given_up_by_name() {
    let user = User::new();
    let result = user.json(&["--weaken", "cgroups", "-c", "print('hello')"]);
    assert_eq!(result["stdout"], "hello\n", "{result:#}");
    assert_eq!(result["report"]["weakened"], serde_json::json!(["cgroups"]));
    assert!(result["report"]["cgroup"].is_null());
    for uncounted in ["cpu_ms", "memory_peak_bytes", "processes_peak"] {
        assert!(result["usage"][uncounted].is_null(), "{result:#}");
    }
    let result = user.json(&[
        "--weaken",
        "cgroups",
        "--timeout",
        "500ms",
        "-c",
        "import os\nif os.fork() == 0: os.setsid()\nwhile True: pass",
    ]);
    assert_eq!(
        result["status"], "timed_out",
        "the deadline holds without them: {result:#}"
    );
    let result = user.json(&[
        "--weaken",
        "cgroups",
        "--disk",
        "8m",
        "-c",
        "open('x', 'wb').write(bytes(20 << 20))",
    ]);
    assert_eq!(result["status"], "failed", "so does the disk: {result:#}");
}

#[test]
fn a_file_that_the_user_may_not_read_is_refused() {
    let user = User::new();
    let secret = user.home.path().join("secret.py");
    fs::write(&secret, "print('secret')").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let path = secret.to_str().unwrap();
    let attempts: [&[&str]; 4] = [
        &[path],
        &["--stdin", path, "-c", "x"],
        &["--file", path, "-c", "x"],
        &["/etc/shadow"],
    ];
    for args in attempts {
        let ended = user.run(args);
        assert_eq!(
            (ended.code, ended.stdout.as_str()),
            (125, ""),
            "{args:?}: {ended:?}"
        );
        assert!(
            ended.stderr.contains("you may not read it"),
            "{args:?}: {ended:?}"
        );
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    }
}

#[test]
fn a_volume_gives_no_more_than_the_user_has() {
    let user = User::delegated();
    let others = directory(&[("open.txt", "open"), ("closed.txt", "closed")]);
    fs::set_permissions(
        others.path().join("closed.txt"),
        Permissions::from_mode(0o600),
    )
    .unwrap();
    let code = "
for name in ('open.txt', 'closed.txt'):
    try: print(open('/data/' + name).read())
    except OSError as e: print(e.strerror)
try: open('/data/new', 'w'); print('written')
except OSError as e: print(e.strerror)
";
    let volume = format!("{}:/data:rw", others.path().display());
    let ended = user.run(&["--volume", &volume, "-c", code]);
    assert_eq!(
        ended.parts(),
        (0, "open\nPermission denied\nPermission denied\n", "")
    );
    let closed = format!("{}/closed.txt:/closed", others.path().display());
    let refused = user.run(&["--volume", &closed, "-c", "pass"]);
    assert_eq!((refused.code, &*refused.stdout), (125, ""));
    let words = "a file or directory that can be read (Permission denied";
    assert!(refused.stderr.contains(words), "{refused:?}");
}

#[test]
fn images_too() {
    let user = User::new();
    let root = user.home.path().join("root.tar");
    fs::copy(python_root(), &root).unwrap();
    fs::set_permissions(&root, Permissions::from_mode(0o644)).unwrap();
    let imported: Ended = user
        .command("belljar")
        .args(["image", "import", "root.tar", "--name", "mine"])
        .output()
        .unwrap()
        .into();
    assert_eq!(imported.code, 0, "{imported:?}");
    let code = "import os, only_in_the_image as o; print(o.WHERE, os.getuid())\ntry: open('/usr/x', 'w')\nexcept OSError as error: print(error.errno)";
    for (more, expected) in [
        (&[][..], "the image 1000\n30\n"),
        (&["--writable"][..], "the image 1000\n"),
    ] {
        let args = [
            &["--weaken", "cgroups", "--image", "mine"],
            more,
            &["-c", code],
        ]
        .concat();
        assert_eq!(user.run(&args).parts(), (0, expected, ""));
    }
    // A session keeps its state.
    let mut repl = user.command("belljar");
    repl.args(["repl", "--weaken", "cgroups", "--image", "mine"]);
    let lines = root.with_file_name("lines");
    fs::write(&lines, "x = 41\nx + 1\n").unwrap();
    let ended: Ended = repl
        .stdin(fs::File::open(&lines).unwrap())
        .output()
        .unwrap()
        .into();
    assert!(ended.stdout.contains("42"), "{ended:?}");
}
