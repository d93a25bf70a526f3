//! What a sandbox sees, as the kernel lists it.

use std::path::Path;

use belljar_spec::Weakening;

use super::demand;
use crate::error::{Context, Result, Step};
use crate::plan::{Entry, Plan};
use crate::{kernel_file, landlock, mould, root};

/// The mounts as the sandbox has them: a private root, read-only unless asked otherwise, and every mount `nosuid`. Where the root may
/// be after a mould, so that others have its files too, no mount can be written to but those that are its own.
pub(super) fn check_root(pid: i32, plan: &Plan) -> Result<bool> {
    let path = format!("/proc/{pid}/mountinfo");
    let mounts = kernel_file::read(&path).during(Step::Verify, path)?;
    check_mounts(&mounts, plan)
}

fn check_mounts(mounts: &str, plan: &Plan) -> Result<bool> {
    let mut read_only = false;
    let mut images: Vec<_> = plan.entries.iter().filter_map(image_mount).collect();
    let shared = mould::suits(plan);
    let private = root::private_places(plan).map(|(_, target, ..)| target);
    let private = private.map(|target| target.to_str().unwrap_or_default());
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(3);
        let mut next = || fields.next().unwrap_or_default();
        let (root, target, options) = (next(), next(), next());
        images.retain(|(source, at)| {
            let shown = *at == Path::new(target);
            // A writable layer is a mount of its own over the image's.
            !(shown && (plan.writable || source.ends_with(root.trim_start_matches('/'))))
        });
        let has = |option: &str| options.split(',').any(|word| word == option);
        demand(has("nosuid"), "a mount honours set-user-id bits")?;
        if target == "/" {
            read_only = has("ro");
        }
        let is_own = || target == "/proc" || private.contains(&target);
        let open = !shared || has("ro") || is_own() || landlock::DEVICES.contains(&target);
        demand(open, "a mount that others have too is writable")?;
    }
    demand(images.is_empty(), "its root is not all of its image's")?;
    let wanted = !plan.writable && plan.keeps(Weakening::Mounts);
    demand(read_only || !wanted, "its root is writable")?;
    Ok(read_only)
}

/// Where something of an image is on the host and inside, unless its name would be written otherwise in the list of mounts.
fn image_mount(entry: &Entry) -> Option<(&Path, &Path)> {
    let Entry::Image { source, target } = entry else {
        return None;
    };
    (is_plain(source) && is_plain(target)).then_some((source, target))
}

/// Whether the list of mounts has this path as it is.
pub fn is_plain(path: &Path) -> bool {
    !path.to_string_lossy().contains([' ', '\t', '\n', '\\'])
}

#[cfg(test)]
mod tests {
    use super::super::tests::plan;
    use super::*;

    #[test]
    fn what_others_have_too_must_be_read_only() {
        let list = |change: (&str, &str)| {
            let lines = [
                "1 0 0:1 / / ro,nosuid,nodev,relatime - tmpfs belljar ro",
                "2 1 8:1 /usr /usr ro,nosuid,nodev,relatime - ext4 /dev/vda rw",
                "3 1 0:5 /null /dev/null rw,nosuid,noexec,relatime - devtmpfs devtmpfs rw",
                "4 1 0:2 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw",
                "5 1 0:3 /workspace /workspace rw,nosuid,nodev,relatime - tmpfs belljar rw",
                "6 1 0:3 /tmp /tmp rw,nosuid,nodev,relatime - tmpfs belljar rw",
                "7 1 0:3 /shm /dev/shm rw,nosuid,nodev,noexec,relatime - tmpfs belljar rw",
            ];
            lines.join("\n").replace(change.0, change.1)
        };
        let refusal =
            |plan: &Plan, change| check_mounts(&list(change), plan).map_err(|e| e.to_string());
        assert_eq!(refusal(&plan(), ("", "")), Ok(true));
        for (change, words) in [
            (("/ / ro", "/ / rw"), "writable"),
            (("/usr ro", "/usr rw"), "others have too"),
            (("/tmp /tmp rw", "/tmp /etc rw"), "others have too"),
            (("/usr ro,nosuid", "/usr ro"), "set-user-id"),
        ] {
            let refused = refusal(&plan(), change).expect_err(words);
            assert!(refused.contains(words), "{refused}");
        }
        let mut writable = plan();
        writable.writable = true;
        assert_eq!(refusal(&writable, ("/usr ro", "/usr rw")), Ok(true));
    }
}
