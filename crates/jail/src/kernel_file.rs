//! Reading the small files in which the kernel tells about itself.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The whole text. Unlike `fs::read_to_string` it does not feel its way with tiny reads, because such files say size zero.
pub fn read(path: impl AsRef<Path>) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut bytes = vec![0; 4 << 10];
    let mut filled = 0;
    loop {
        let n = file.read(&mut bytes[filled..])?;
        filled += n;
        if n == 0 {
            bytes.truncate(filled);
            return String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into());
        }
        if filled == bytes.len() {
            bytes.resize(bytes.len() * 2, 0);
        }
    }
}
