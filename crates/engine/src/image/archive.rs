//! Compressed streams: known by how they begin.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Chain, Cursor, Read, Seek};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const XZ: [u8; 6] = [0xfd, b'7', b'z', b'X', b'Z', 0];
/// After three letters and a digit, which a tar file may begin with too.
const BZIP_BLOCK: [u8; 6] = [0x31, 0x41, 0x59, 0x26, 0x53, 0x59];
/// The first of sixteen that mark what decoders skip.
const SKIPPED: u32 = 0x184d_2a50;
/// A decoder that has seen one before refuses windows of more than 100 MiB, which are a way to use up memory.
const EMPTY_FRAME: [u8; 9] = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 0, 1, 0, 0];

pub(super) fn is_compressed(file: &mut File) -> io::Result<bool> {
    let mut start = [0; 10];
    let mut count = 0;
    while count < start.len() {
        match file.read(&mut start[count..])? {
            0 => break,
            n => count += n,
        }
    }
    file.rewind()?;
    check(&start)?;
    Ok(start.starts_with(&GZIP) || start.starts_with(&ZSTD))
}

/// Says so when something is compressed as we do not know it.
fn check(start: &[u8]) -> io::Result<()> {
    let is_bzip = start.starts_with(b"BZh") && start.get(4..10) == Some(&BZIP_BLOCK[..]);
    let kind = match start {
        _ if start.starts_with(&XZ) => "xz",
        _ if is_bzip => "bzip2",
        _ => return Ok(()),
    };
    let text = format!("it is compressed with {kind}; only gzip and zstd are known here");
    Err(io::Error::new(io::ErrorKind::InvalidData, text))
}

/// What is in a stream that may be compressed.
pub(super) fn decompress<'a>(source: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut source = BufReader::with_capacity(1 << 18, source);
    let start = source.fill_buf()?;
    check(start)?;
    if start.starts_with(&GZIP) {
        return Ok(Box::new(MultiGzDecoder::new(source)));
    }
    if start.starts_with(&ZSTD) {
        return Ok(Box::new(Frames::Between(source)));
    }
    Ok(Box::new(source))
}

/// A stream whose first bytes have been looked at.
type Begun<R> = Chain<Cursor<[u8; 4]>, R>;

/// The frames of a zstd stream, one after the other: tools that compress in parallel write many.
enum Frames<R: Read> {
    Between(R),
    Within(Box<StreamingDecoder<Begun<R>, FrameDecoder>>),
    Ended,
}

impl<R: Read> Frames<R> {
    /// Begins with the next frame, if there is one.
    fn next(mut source: R) -> io::Result<Self> {
        loop {
            let mut magic = [0; 4];
            match source.read(&mut magic[..1])? {
                0 => return Ok(Self::Ended),
                _ => source.read_exact(&mut magic[1..])?,
            }
            if u32::from_le_bytes(magic) & !0xf == SKIPPED {
                let mut length = [0; 4];
                source.read_exact(&mut length)?;
                let mut skipped = source.by_ref().take(u32::from_le_bytes(length).into());
                io::copy(&mut skipped, &mut io::sink())?;
                continue;
            }
            let mut decoder = FrameDecoder::new();
            decoder.init(&EMPTY_FRAME[..]).map_err(io::Error::other)?;
            let source = Cursor::new(magic).chain(source);
            let frame = StreamingDecoder::new_with_decoder(source, decoder);
            return Ok(Self::Within(Box::new(frame.map_err(io::Error::other)?)));
        }
    }
}

impl<R: Read> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            *self = match std::mem::replace(self, Self::Ended) {
                Self::Ended => return Ok(0),
                Self::Between(source) => Self::next(source)?,
                Self::Within(mut frame) => {
                    let count = frame.read(buffer)?;
                    if count > 0 || buffer.is_empty() {
                        *self = Self::Within(frame);
                        return Ok(count);
                    }
                    Self::Between(frame.into_inner().into_inner().1)
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    fn plain(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        decompress(bytes)?.read_to_end(&mut out).map(|_| out)
    }

    #[test]
    fn frames_follow_each_other() {
        let frame = |text: &[u8]| compress_to_vec(text, CompressionLevel::Uncompressed);
        let skipped = [
            &0x184d_2a53_u32.to_le_bytes()[..],
            &3_u32.to_le_bytes(),
            b"xyz",
        ]
        .concat();
        let all = [frame(b"one "), skipped, frame(b"two")].concat();
        assert_eq!(plain(&all).unwrap(), b"one two");
        assert!(plain(&all[..all.len() - 2]).is_err(), "cut off");
        assert_eq!(plain(b"plain").unwrap(), b"plain");
    }

    #[test]
    fn other_compressions_are_named() {
        for (bytes, name) in [(&b"\xfd7zXZ\0\0"[..], "xz"), (b"BZh91AY&SYxx", "bzip2")] {
            let error = plain(bytes).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
        assert_eq!(plain(b"BZh9").unwrap(), b"BZh9");
    }

    #[test]
    fn a_huge_window_is_refused() {
        // Window descriptor 0xA0: 2^30 bytes.
        let bytes = [0x28, 0xb5, 0x2f, 0xfd, 0, 0xa0, 1, 0, 0];
        assert!(plain(&bytes).is_err());
    }
}
