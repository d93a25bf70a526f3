//! What happens during a run, on its way to one reader.
//!
//! The run never waits for the reader. What the reader has not taken yet is joined: output of one stream that follows
//! itself is one event, and when too many wait, it joins the last of its stream. So what waits is bounded by the run's
//! output limit and a number of events, not by how many small writes the program makes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar::{Sink, Stream};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::admission::{Held, Ticket};
use crate::answer::counted;
use crate::clock;

/// Events that may wait before streams are no longer kept in step with each other.
const MANY: usize = 512;
/// Bytes of displays and calls that may wait; one of any size always may.
const MOST_OFFERED: usize = 32 << 20;

enum Item {
    Output(Stream, Vec<u8>),
    Offered(&'static str, Box<Offer>),
    /// What ends it.
    Last(&'static str, Value, Option<Box<Ticket>>),
}

/// What the code makes up: an object, as text. As a value it can take forty times as much.
pub struct Offer {
    text: String,
    /// Counts it until it has been sent.
    _held: Held,
}

#[derive(Default)]
struct Inner {
    waiting: VecDeque<(u64, Item)>,
    closed: bool,
    /// Bytes of what waits and was offered.
    offered: usize,
    seq: u64,
    stdout: Tail,
    stderr: Tail,
}

/// Bytes of a character that has not come completely.
#[derive(Debug, Default)]
struct Tail(Vec<u8>);

/// One event, as the reader gets it.
pub struct Event {
    pub seq: u64,
    pub name: &'static str,
    /// An object with `seq` and `time` in it.
    pub data: Value,
    /// More of that object.
    pub more: Option<Box<Offer>>,
    /// Where it is large: what it counts as until it has been sent.
    pub ticket: Option<Box<Ticket>>,
}

/// Cheap to clone; one end writes, one reads.
#[derive(Clone, Default)]
pub struct Outbox(Arc<(Mutex<Inner>, Notify)>);

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the code makes up, an object: `false`, and nothing is told, if too much of it waits already, here or with all others.
    pub fn offer(&self, name: &'static str, body: &Value, room: &Held) -> bool {
        let text = body.to_string();
        let bytes = text.len();
        let mut inner = self.lock();
        let fits = inner.offered == 0 || inner.offered + bytes <= MOST_OFFERED;
        let Some(held) = fits.then(|| room.another(bytes as u64).ok()).flatten() else {
            return false;
        };
        inner.offered += bytes;
        let offer = Box::new(Offer { text, _held: held });
        let item = Item::Offered(name, offer);
        inner.waiting.push_back((clock::now_millis(), item));
        drop(inner);
        self.0.1.notify_one();
        true
    }

    /// How much of what the code printed and showed nobody has taken yet.
    pub fn waiting_bytes(&self) -> usize {
        let inner = self.lock();
        let output = inner.waiting.iter().map(|(_, item)| match item {
            Item::Output(_, bytes) => bytes.len(),
            Item::Offered(..) | Item::Last(..) => 0,
        });
        inner.offered + output.sum::<usize>()
    }

    /// How it ended: the last event, with what counts it until the reader has it.
    pub fn end(&self, name: &'static str, body: Value, ticket: Option<Box<Ticket>>) {
        let mut inner = self.lock();
        let item = Item::Last(name, body, ticket);
        inner.waiting.push_back((clock::now_millis(), item));
        inner.closed = true;
        drop(inner);
        self.0.1.notify_one();
    }

    pub fn output(&self, stream: Stream, bytes: &[u8]) {
        let mut inner = self.lock();
        let many = inner.waiting.len() >= MANY;
        let near = if many { MANY } else { 1 };
        let joinable = inner
            .waiting
            .iter_mut()
            .rev()
            .take(near)
            .find_map(|(_, item)| match item {
                Item::Output(of, joined) if *of == stream => Some(joined),
                _ => None,
            });
        if let Some(joined) = joinable {
            joined.extend_from_slice(bytes);
        } else {
            let item = Item::Output(stream, bytes.to_vec());
            inner.waiting.push_back((clock::now_millis(), item));
        }
        drop(inner);
        self.0.1.notify_one();
    }

    /// The next event; `None` when there will be no more.
    pub async fn next(&self) -> Option<Event> {
        loop {
            if let Poll::Ready(answer) = self.lock().take() {
                return answer;
            }
            self.0.1.notified().await;
        }
    }
}

impl Inner {
    /// What is there now; nothing ever again where it is closed.
    fn take(&mut self) -> Poll<Option<Event>> {
        while let Some((time, item)) = self.waiting.pop_front() {
            let event = match item {
                Item::Output(stream, bytes) => self.output(time, stream, bytes),
                Item::Offered(name, offer) => {
                    self.offered -= offer.text.len();
                    Some(Event {
                        more: Some(offer),
                        ..self.event(time, name, json!({}))
                    })
                }
                Item::Last(name, body, ticket) => {
                    // What is left of a character will not be completed any more.
                    let cut = [Stream::Stdout, Stream::Stderr]
                        .into_iter()
                        .find_map(|stream| self.cut_off(time, stream));
                    if let Some(cut) = cut {
                        self.waiting
                            .push_front((time, Item::Last(name, body, ticket)));
                        return Poll::Ready(Some(cut));
                    }
                    Some(Event {
                        ticket,
                        ..self.event(time, name, body)
                    })
                }
            };
            if event.is_some() {
                return Poll::Ready(event);
            }
        }
        if self.closed {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    }

    fn tail(&mut self, stream: Stream) -> &mut Tail {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }

    fn output(&mut self, time: u64, stream: Stream, bytes: Vec<u8>) -> Option<Event> {
        let bytes = self.tail(stream).join(bytes);
        self.text(time, stream, &bytes)
    }

    fn cut_off(&mut self, time: u64, stream: Stream) -> Option<Event> {
        let bytes = std::mem::take(&mut self.tail(stream).0);
        self.text(time, stream, &bytes)
    }

    fn text(&mut self, time: u64, stream: Stream, bytes: &[u8]) -> Option<Event> {
        if bytes.is_empty() {
            return None;
        }
        let name = match stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        let body = match std::str::from_utf8(bytes) {
            Ok(text) => json!({ "text": text }),
            Err(_) => json!({
                "text": String::from_utf8_lossy(bytes),
                "base64": STANDARD.encode(bytes),
            }),
        };
        Some(self.event(time, name, body))
    }

    fn event(&mut self, time: u64, name: &'static str, mut data: Value) -> Event {
        self.seq += 1;
        data["seq"] = self.seq.into();
        data["time"] = clock::format(time).into();
        Event {
            seq: self.seq,
            name,
            data,
            more: None,
            ticket: None,
        }
    }
}

impl Tail {
    /// The bytes with what was left before them, and without what is incomplete at their end.
    fn join(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        let mut all = std::mem::take(&mut self.0);
        all.extend(bytes);
        if let Err(error) = std::str::from_utf8(&all)
            && error.error_len().is_none()
        {
            self.0 = all.split_off(error.valid_up_to());
        } else {
            // Something else is wrong earlier; a character may be cut all the same.
            let incomplete = all
                .utf8_chunks()
                .last()
                .map_or(0, |last| last.invalid().len());
            let at = all.len() - incomplete;
            let is_start =
                std::str::from_utf8(&all[at..]).is_err_and(|error| error.error_len().is_none());
            if is_start {
                self.0 = all.split_off(at);
            }
        }
        all
    }
}

impl Sink for Outbox {
    fn output(&mut self, stream: Stream, bytes: &[u8]) {
        Self::output(self, stream, bytes);
    }
}

impl Event {
    /// All of it, as JSON.
    pub fn text(&self) -> String {
        let mut text = self.data.to_string();
        // Both are objects, and the first is not empty.
        if let Some(more) = self.more.as_ref().map(|offer| &offer.text[1..])
            && more != "}"
        {
            text.pop();
            text.push(',');
            text.push_str(more);
        }
        text
    }

    /// As a server-sent event.
    pub fn sse(self) -> Bytes {
        // JSON has no line breaks of its own.
        let text = format!(
            "id: {}\nevent: {}\ndata: {}\n\n",
            self.seq,
            self.name,
            self.text()
        );
        counted(text.into_bytes(), self.ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(outbox: Outbox) -> Vec<(String, Value)> {
        outbox.end("result", json!({}), None);
        let mut seen = Vec::new();
        let mut last = outbox.lock().seq;
        while let Some(event) = outbox.next().await {
            last += 1;
            assert_eq!(event.seq, last);
            let content = event.data.get("base64").or(event.data.get("text"));
            seen.push((event.name.to_owned(), content.cloned().unwrap_or_default()));
        }
        seen
    }

    #[tokio::test]
    async fn characters_are_not_torn_and_bytes_not_lost() {
        let outbox = Outbox::default();
        let text = "aé✓".as_bytes();
        let mut seen = String::new();
        for byte in text {
            outbox.output(Stream::Stdout, &[*byte]);
            while let Poll::Ready(Some(event)) = { outbox.lock().take() } {
                assert!(event.data.get("base64").is_none());
                seen.push_str(event.data["text"].as_str().unwrap());
            }
        }
        assert_eq!(seen, "aé✓");
        outbox.output(Stream::Stdout, b"x\xff\xe2\x9c");
        outbox.output(Stream::Stderr, b"\xe2");
        let got = all(outbox).await;
        assert_eq!(
            got.iter()
                .map(|(name, _)| name.as_str())
                .collect::<Vec<_>>(),
            ["stdout", "stdout", "stderr", "result"]
        );
    }

    #[tokio::test]
    async fn what_nobody_takes_stays_small() {
        let outbox = Outbox::default();
        for _ in 0..100_000 {
            outbox.output(Stream::Stdout, b"o");
            outbox.output(Stream::Stderr, b"e");
        }
        assert!(outbox.lock().waiting.len() <= MANY + 1);
        let got = all(outbox).await;
        let count = |wanted: &str| {
            got.iter()
                .filter(|(name, _)| name == wanted)
                .map(|(_, text)| text.as_str().unwrap().len())
                .sum::<usize>()
        };
        assert_eq!((count("stdout"), count("stderr")), (100_000, 100_000));
    }
}
