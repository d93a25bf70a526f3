//! Layouts that scouts have found, remembered between runs: whoever starts a pool of the same kind has its first interpreter laid out.
//!
//! Nothing depends on a layout but speed, so one that was found for something else does no harm. It is found anew now and then.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use belljar_jail::Layout;

use crate::kernel::files_of;
use crate::runtime::{Cache, Kernel, Toolchain};

/// For so long.
const KEPT: Duration = Duration::from_hours(24 * 30);
const NAME: &str = "layout-";

pub(super) struct Remembered {
    cache: Cache,
    file: String,
}

impl Remembered {
    /// Of interpreters that start like this one: the same files, the same modules, and the library that knows objects.
    pub fn of(
        cache: Cache,
        toolchain: &Toolchain,
        kernel: Option<&Kernel>,
        preload: &[String],
    ) -> Self {
        let mut hasher = DefaultHasher::new();
        let image = toolchain.image.as_ref().map(|image| image.id.hex());
        (&toolchain.version, &toolchain.program).hash(&mut hasher);
        (&toolchain.layers, preload, &image).hash(&mut hasher);
        if image.is_none()
            && let Ok(program) = fs::metadata(&toolchain.program)
        {
            (program.len(), program.mtime()).hash(&mut hasher);
        }
        if let Some(kernel) = kernel {
            files_of(&kernel.files).for_each(|file| file.hash(&mut hasher));
        }
        belljar_jail::COPIER.hash(&mut hasher);
        let file = format!("{NAME}{:016x}", hasher.finish());
        Self { cache, file }
    }

    pub fn load(&self) -> Option<Layout> {
        let (layout, since) = self.cache.get(&self.file)?;
        let is_new = since.elapsed().is_ok_and(|age| age < KEPT);
        (is_new && !layout.is_empty()).then_some(layout)
    }

    pub fn store(&self, layout: &Layout) {
        self.sweep();
        self.cache.put(&self.file, layout);
    }

    /// An interpreter did not come up with it.
    pub fn forget(&self) {
        if let Some(place) = self.cache.private() {
            let _ = fs::remove_file(place.join(&self.file));
        }
    }

    /// Removes what is too old to be read.
    fn sweep(&self) {
        let listing = self
            .cache
            .private()
            .and_then(|place| fs::read_dir(place).ok());
        for entry in listing.into_iter().flatten().flatten() {
            let changed = || entry.metadata().and_then(|found| found.modified()).ok();
            let is_old = |at: SystemTime| at.elapsed().is_ok_and(|age| age >= KEPT);
            let is_layout = entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(NAME.as_bytes());
            if is_layout && changed().is_some_and(is_old) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}
