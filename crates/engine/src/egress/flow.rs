//! Bytes in one direction, counted and paced.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::oneshot;

use super::Desk;
use super::answer::{self, Part};
use super::http;
use super::meter::Spent;
use super::tunnel::Cut;

/// Small at first: most connections carry little.
const SMALL: usize = 16 << 10;
const BUFFER: usize = 256 << 10;
/// So many directions of a sandbox's connections have a buffer that is not small: it is our memory, not the sandbox's.
pub const MANY: usize = 16;

pub struct Flow<'a> {
    pub desk: &'a Desk,
    pub counter: &'a AtomicU64,
    /// Outwards.
    pub sent: bool,
}

impl Flow<'_> {
    pub async fn pass(&self, to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<(), Cut> {
        let spent = |Spent| Cut::Refused(Spent::REASON.into());
        self.desk.meter.admit(bytes.len()).await.map_err(spent)?;
        // First: whoever has got them finds them counted.
        self.counter
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.desk.world.passed(self.sent, bytes.len());
        to.write_all(bytes).await?;
        Ok(())
    }

    /// Everything until the end, which is passed on too.
    pub async fn all(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        early: Vec<u8>,
    ) -> Result<(), Cut> {
        if !early.is_empty() {
            self.pass(to, &early).await?;
            to.flush().await?;
        }
        let mut buffer = vec![0; SMALL];
        let mut bulk = None;
        loop {
            let length = from.read(&mut buffer).await?;
            if length == 0 {
                let _ = to.shutdown().await;
                return Ok(());
            }
            self.pass(to, &buffer[..length]).await?;
            to.flush().await?;
            if length == buffer.len() && length < BUFFER {
                bulk = bulk.or_else(|| self.desk.bulk.try_acquire().ok());
                if bulk.is_some() {
                    buffer = vec![0; (length * 4).min(BUFFER)];
                }
            }
        }
    }

    /// Everything that a server says; and whether it begins by changing to another protocol. Where that is the answer to a request
    /// (`asked`), its head tells the client that the connection carries no other one.
    pub async fn answers(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        asked: &AtomicBool,
        verdict: oneshot::Sender<bool>,
    ) -> Result<(), Cut> {
        let mut begun = Vec::with_capacity(16 << 10);
        let mut switched = false;
        loop {
            if from.read_buf(&mut begun).await? == 0 {
                return self.all(from, to, begun).await;
            }
            // A server that speaks first does not answer.
            if !asked.load(Ordering::Acquire) {
                return self.all(from, to, begun).await;
            }
            while let Some((part, length)) = answer::next(&begun) {
                let rest = begun.split_off(length);
                match part {
                    Part::Interim => {
                        self.pass(to, &begun).await?;
                        to.flush().await?;
                        begun = rest;
                        continue;
                    }
                    Part::Final => begun = answer::closing(&begun),
                    Part::Other => {}
                    Part::Switched => switched = true,
                }
                let _ = verdict.send(switched);
                begun.extend(rest);
                return self.all(from, to, begun).await;
            }
            if begun.len() > http::MAX_HEAD {
                return self.all(from, to, begun).await;
            }
            begun.reserve(4096);
        }
    }

    /// So many bytes, and not one more.
    pub async fn exactly(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        buffer: &mut Vec<u8>,
        mut count: u64,
    ) -> Result<(), Cut> {
        while count > 0 {
            if buffer.is_empty() {
                buffer.reserve(64 << 10);
                if from.read_buf(buffer).await? == 0 {
                    return Err(Cut::Broken);
                }
            }
            let now = usize::try_from(count)
                .unwrap_or(usize::MAX)
                .min(buffer.len());
            self.pass(to, &buffer[..now]).await?;
            buffer.drain(..now);
            count -= now as u64;
        }
        to.flush().await?;
        Ok(())
    }

    /// A body in chunks, with its trailer.
    pub async fn chunks(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        buffer: &mut Vec<u8>,
    ) -> Result<(), Cut> {
        let mut trailer = None;
        loop {
            let line = line(from, buffer).await?;
            let text = String::from_utf8_lossy(&buffer[..line - 2]).into_owned();
            // A server may end a line where we do not.
            if text.bytes().any(|b| b < b' ' && b != b'\t' || b == 0x7f) {
                return Err(malformed());
            }
            self.exactly(from, to, buffer, line as u64).await?;
            if let Some(bytes) = &mut trailer {
                *bytes += line;
                if text.is_empty() {
                    return Ok(());
                }
                if *bytes > http::MAX_HEAD {
                    return Err(Cut::Broken);
                }
                continue;
            }
            let size = text.split(';').next().unwrap_or("").trim();
            let digits = !size.is_empty() && size.bytes().all(|b| b.is_ascii_hexdigit());
            match u64::from_str_radix(size, 16).ok().filter(|_| digits) {
                Some(0) => trailer = Some(0),
                Some(size) => {
                    self.exactly(from, to, buffer, size).await?;
                    while buffer.len() < 2 {
                        if from.read_buf(buffer).await? == 0 {
                            return Err(Cut::Broken);
                        }
                    }
                    if !buffer.starts_with(b"\r\n") {
                        return Err(malformed());
                    }
                    self.exactly(from, to, buffer, 2).await?;
                }
                None => return Err(malformed()),
            }
        }
    }
}

fn malformed() -> Cut {
    Cut::Refused("the chunks of the body are malformed".into())
}

/// How long the next line is, its end included.
async fn line(from: &mut (impl AsyncRead + Unpin), buffer: &mut Vec<u8>) -> Result<usize, Cut> {
    loop {
        if let Some(at) = http::find(buffer, b"\r\n") {
            return Ok(at + 2);
        }
        if buffer.len() > 4096 || from.read_buf(buffer).await? == 0 {
            return Err(Cut::Broken);
        }
    }
}
