//! What happened in a sandbox's channel, with numbers: a connection that broke and came back finds what it has not seen.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::extract::ws::Utf8Bytes;
use tokio::sync::watch;

use crate::answer::counted;
use crate::events::Event;
use crate::input::Input;

/// What was sent is kept up to this size, for a connection that comes back.
const KEPT_BYTES: usize = 1 << 20;
/// More than this does not wait to be sent.
const WAITING_BYTES: usize = 4 << 20;

/// Events after which a run is over.
pub const LAST: [&str; 2] = ["result", "error"];

/// The log of a sandbox's channel.
pub struct Channel {
    log: Mutex<Log>,
    /// The last number.
    pub news: watch::Sender<u64>,
    /// Which connection is the one. The last that came.
    pub connection: watch::Sender<u64>,
    /// What has been sent.
    pub sent: watch::Sender<u64>,
}

#[derive(Default)]
pub struct Log {
    entries: VecDeque<(u64, Utf8Bytes)>,
    bytes: usize,
    /// Runs that are going, by the client's names, with where their input goes.
    pub runs: HashMap<String, Option<Input>>,
    attached: bool,
    /// Nobody came back in time: what happens counts as sent.
    left: bool,
}

impl Default for Channel {
    fn default() -> Self {
        Self {
            log: Mutex::default(),
            news: watch::channel(0).0,
            connection: watch::channel(0).0,
            sent: watch::channel(0).0,
        }
    }
}

impl Channel {
    pub fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while too much waits already.
    pub async fn room(&self) {
        let mut sent = self.sent.subscribe();
        loop {
            let done = *sent.borrow_and_update();
            let waiting: usize = {
                let log = self.lock();
                if log.left {
                    break;
                }
                let unsent = log.entries.iter().rev().take_while(|(seq, _)| *seq > done);
                unsent.map(|(_, text)| text.len()).sum()
            };
            if waiting < WAITING_BYTES || sent.changed().await.is_err() {
                break;
            }
        }
    }

    /// Whether there is room or not. With the last event of a run, its name is free.
    pub fn push(&self, run: &str, mut event: Event) {
        let mut log = self.lock();
        let seq = *self.news.borrow() + 1;
        event.data["seq"] = seq.into();
        event.data["event"] = event.name.into();
        event.data["run"] = run.into();
        if LAST.contains(&event.name) {
            log.runs.remove(run);
        }
        let text = counted(event.text().into_bytes(), event.ticket);
        // It is UTF-8.
        let text = Utf8Bytes::try_from(text).unwrap_or_default();
        log.bytes += text.len();
        log.entries.push_back((seq, text));
        log.forget(*self.sent.borrow());
        drop(log);
        self.news.send_replace(seq);
    }

    /// What comes after `seq`; `false` if some of that is forgotten.
    pub fn after(&self, seq: u64) -> (Vec<(u64, Utf8Bytes)>, bool) {
        let log = self.lock();
        let first = log
            .entries
            .front()
            .map_or(*self.news.borrow() + 1, |(seq, _)| *seq);
        let entries = log.entries.iter().filter(|(own, _)| *own > seq);
        (entries.cloned().collect(), first <= seq + 1)
    }

    pub fn attach(&self) -> u64 {
        let mut log = self.lock();
        (log.attached, log.left) = (true, false);
        drop(log);
        let mut number = 0;
        self.connection.send_modify(|current| {
            *current += 1;
            number = *current;
        });
        number
    }

    /// `true`: nobody has taken over.
    pub fn detach(&self, number: u64) -> bool {
        let mut log = self.lock();
        let is_last = *self.connection.borrow() == number;
        if is_last {
            log.attached = false;
        }
        is_last
    }

    /// The runs of a connection to which nobody came back. Whoever comes later finds what is still there.
    pub fn leave(&self, number: u64) -> Vec<String> {
        let mut log = self.lock();
        if *self.connection.borrow() != number || log.attached {
            return Vec::new();
        }
        log.left = true;
        let all = *self.news.borrow();
        log.forget(all);
        let runs = log.runs.keys().cloned().collect();
        drop(log);
        self.sent.send_replace(all);
        runs
    }
}

impl Log {
    /// Of what was sent, up to a number, what is too much.
    fn forget(&mut self, sent: u64) {
        while self.bytes > KEPT_BYTES
            && let Some((seq, text)) = self.entries.front()
            && (self.left || *seq <= sent)
        {
            self.bytes -= text.len();
            self.entries.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_millis(50);

    fn large() -> Event {
        Event {
            seq: 0,
            name: "stdout",
            data: json!({ "text": "x".repeat(3 << 20) }),
            more: None,
            ticket: None,
        }
    }

    async fn append(channel: &Channel) {
        channel.room().await;
        channel.push("a", large());
    }

    /// What is left of a run when its end is told is nothing: the next may have its name.
    #[test]
    fn the_end_of_a_run_frees_its_name() {
        let channel = Channel::default();
        for (name, goes_on) in [("refused", true), ("stdout", true), ("error", false)] {
            channel.lock().runs.insert("a".into(), None);
            channel.push("a", Event { name, ..large() });
            assert_eq!(channel.lock().runs.contains_key("a"), goes_on, "{name}");
        }
    }

    #[tokio::test]
    async fn nothing_waits_for_one_that_does_not_come_back() {
        let channel = Channel::default();
        let number = channel.attach();
        for _ in 0..2 {
            append(&channel).await;
        }
        assert!(timeout(SOON, append(&channel)).await.is_err());
        assert!(channel.detach(number));
        assert!(channel.leave(number).is_empty());
        for _ in 0..5 {
            timeout(SOON, append(&channel)).await.unwrap();
        }
        assert!(channel.lock().bytes <= KEPT_BYTES);
        // Whoever comes later hears that it has missed something, and what happens from then on.
        let _ = channel.attach();
        assert!(!channel.after(0).1);
        append(&channel).await;
        assert_eq!(channel.after(7).0.len(), 1);
    }

    #[tokio::test]
    async fn one_that_came_back_loses_nothing() {
        let channel = Channel::default();
        let number = channel.attach();
        append(&channel).await;
        assert!(channel.detach(number));
        let _ = channel.attach();
        assert!(channel.leave(number).is_empty());
        assert_eq!((channel.after(0).0.len(), channel.after(0).1), (1, true));
    }
}
