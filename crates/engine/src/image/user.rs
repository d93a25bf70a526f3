//! Who an image's user is, and what becomes of that: the one user a sandbox has goes by its name.

use std::fs;
use std::path::Path;

use belljar_jail::INNER_ID;

use super::tree;
use super::unpack::Access;

const MOST_BYTES: u64 = 1 << 20;

/// The user an image wants to be run by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    /// `None`: root, or nobody was named.
    pub name: Option<String>,
    uid: u64,
    groups: Vec<u64>,
}

impl User {
    /// By the `User` of an image's configuration: `name`, `uid`, `name:group`, `uid:gid`.
    pub fn find(root: &Path, wanted: Option<&str>) -> Self {
        let wanted = wanted.unwrap_or_default();
        let (user, group) = wanted.split_once(':').unwrap_or((wanted, ""));
        if user.is_empty() || user == "root" || user == "0" {
            return Self {
                name: None,
                uid: 0,
                groups: Vec::new(),
            };
        }
        let passwd = read(root, "/etc/passwd");
        let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
        let row = passwd
            .lines()
            .map(fields)
            .find(|row| row.len() > 3 && (row[0] == user || row[2] == user));
        // A user that nobody knows is nobody: it owns nothing.
        let uid = row
            .as_ref()
            .map_or(user, |row| &row[2])
            .parse()
            .unwrap_or(65_534);
        let own = row.as_ref().and_then(|row| row[3].parse().ok());
        let name = row.map(|row| row[0].clone());
        let file = read(root, "/etc/group");
        let mut groups: Vec<u64> = own.into_iter().chain(group.parse().ok()).collect();
        for row in file.lines().map(fields).filter(|row| row.len() > 3) {
            let member = name
                .as_ref()
                .is_some_and(|name| row[3].split(',').any(|member| member == name));
            if member || row[0] == group {
                groups.extend(row[2].parse::<u64>());
            }
        }
        Self { name, uid, groups }
    }

    /// Whether this user can read that: root reads everything.
    pub fn may_read(&self, what: Access) -> bool {
        self.bits(what) & 4 != 0
    }

    /// Whether what is in that directory can be reached by this user, by its name.
    pub fn may_pass(&self, directory: Access) -> bool {
        self.bits(directory) & 1 != 0
    }

    fn bits(&self, what: Access) -> u32 {
        if self.uid == 0 {
            0o7
        } else if what.uid == self.uid {
            what.mode >> 6
        } else if self.groups.contains(&what.gid) {
            what.mode >> 3
        } else {
            what.mode
        }
    }

    /// What the sandbox's only user is called.
    pub fn called(&self) -> &str {
        let plain = |name: &&str| {
            !name.is_empty()
                && name.len() <= 32
                && name
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        };
        self.name.as_deref().filter(plain).unwrap_or("sandbox")
    }

    /// The image's users, and that one under the number it has in a sandbox.
    pub fn passwd(&self, root: &Path) -> String {
        let home = |row: &str| row.split(':').nth(5).unwrap_or("/tmp").to_owned();
        let (own, mut text) = without(&read(root, "/etc/passwd"), self.called());
        let home = own.map_or_else(|| "/tmp".into(), |row| home(&row));
        text.insert_str(
            0,
            &format!(
                "{0}:x:{INNER_ID}:{INNER_ID}:{0}:{home}:/bin/sh\n",
                self.called()
            ),
        );
        text
    }

    pub fn group(&self, root: &Path) -> String {
        let (_, mut text) = without(&read(root, "/etc/group"), self.called());
        text.insert_str(0, &format!("{}:x:{INNER_ID}:\n", self.called()));
        text
    }
}

/// The lines but that of `name` and of whoever has the sandbox's number; and the former.
fn without(text: &str, name: &str) -> (Option<String>, String) {
    let mut own = None;
    let mut rest = String::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        if fields.next() == Some(name) {
            own = Some(line.to_owned());
        } else if fields.nth(1) != Some(&INNER_ID.to_string()) {
            rest.push_str(line);
            rest.push('\n');
        }
    }
    (own, rest)
}

/// A file of an image; what cannot be read, or is too large to be one, is empty.
pub(super) fn read(root: &Path, path: &str) -> String {
    let Ok(at) = tree::resolve(root, Path::new(path), true) else {
        return String::new();
    };
    let at = root.join(at);
    let plain =
        fs::symlink_metadata(&at).is_ok_and(|found| found.is_file() && found.len() <= MOST_BYTES);
    if plain {
        fs::read(at)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_images() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir(root.join("etc")).unwrap();
        fs::write(
            root.join("etc/passwd"),
            "root:x:0:0:root:/root:/bin/sh\napp:x:77:78::/srv/app:/bin/sh\nada:x:1000:1000::/home/ada:\n",
        )
        .unwrap();
        fs::write(root.join("etc/group"), "root:x:0:\ntape:x:5:app\n").unwrap();
        let private = |uid, gid, mode| Access { uid, gid, mode };
        let app = User::find(root, Some("app"));
        assert_eq!((app.uid, &app.groups[..]), (77, &[78, 5][..]));
        assert_eq!(User::find(root, Some("77")).name.as_deref(), Some("app"));
        assert!(app.may_read(private(77, 0, 0o600)));
        assert!(app.may_read(private(0, 5, 0o640)));
        assert!(!app.may_read(private(0, 0, 0o640)));
        assert!(app.may_pass(private(0, 0, 0o711)) && !app.may_read(private(0, 0, 0o711)));
        assert!(!app.may_pass(private(0, 5, 0o641)) && !app.may_pass(private(77, 0, 0o611)));
        for root_user in [None, Some("root"), Some("0:0"), Some("")] {
            assert!(User::find(root, root_user).may_read(private(0, 0, 0)));
        }
        assert_eq!(
            app.passwd(root),
            "app:x:1000:1000:app:/srv/app:/bin/sh\nroot:x:0:0:root:/root:/bin/sh\n"
        );
        let nobody = User::find(root, Some("12:x"));
        assert_eq!((nobody.called(), nobody.uid), ("sandbox", 12));
    }
}
