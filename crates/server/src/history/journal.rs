//! Runs that may not be in `SQLite` yet: a line for each, added with one write before the run is answered.
//!
//! An answer waits for this write only, not for a transaction with its dozen. What a process before this one left here is read
//! when the history is opened.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::Record;

/// It is emptied now and then, not each time that it could be.
const LARGE: u64 = 1 << 20;
/// If `SQLite` cannot be written for so long, runs are not taken any more.
const FULL: u64 = 256 << 20;

pub struct Journal {
    file: File,
    bytes: u64,
    /// Since it was opened, and how many of these are in `SQLite`.
    added: u64,
    settled: u64,
}

impl Journal {
    pub fn open(path: &Path) -> io::Result<(Self, Vec<Record>)> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        // A line that is not whole was cut off by the end of the process: nobody has had an answer.
        let left = text.split(|byte| *byte == b'\n');
        let left = left.filter_map(|line| serde_json::from_slice(line).ok());
        let journal = Self {
            bytes: file.stream_position()?,
            file,
            added: 0,
            settled: 0,
        };
        Ok((journal, left.collect()))
    }

    pub fn add(&mut self, record: &Record) -> io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        if self.is_full() {
            return Err(io::Error::other("too much waits to be written to SQLite"));
        }
        if let Err(error) = self.file.write_all(&line) {
            // Half a line would spoil the next.
            self.file.set_len(self.bytes)?;
            self.file.seek(io::SeekFrom::Start(self.bytes))?;
            return Err(error);
        }
        self.bytes += line.len() as u64;
        self.added += 1;
        Ok(())
    }

    pub fn is_full(&self) -> bool {
        self.bytes > FULL
    }

    /// How many were added since it was opened.
    pub fn added(&self) -> u64 {
        self.added
    }

    /// So many more are in `SQLite`.
    pub fn settle(&mut self, count: u64) -> io::Result<()> {
        self.settled += count;
        if self.settled < self.added || self.bytes < LARGE {
            return Ok(());
        }
        self.clear()
    }

    pub fn clear(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.bytes = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use belljar_spec::{RunId, Status};
    use serde_json::json;

    use super::*;
    use crate::config;
    use crate::history::History;
    use crate::tenants::Tenant;

    fn record(number: u64) -> Record {
        Record {
            id: RunId::from_bits(u128::from(number)),
            tenant: "t".into(),
            sandbox: None,
            language: "python".into(),
            status: Status::Ok,
            started_at: "2026-01-02T03:04:05.000Z".into(),
            queue_ms: 0.0,
            digest: "d".into(),
            labels: [].into(),
            code: Some("print('\n')".into()),
            request: json!({}),
            result: None,
            shortened: false,
        }
    }

    #[tokio::test]
    async fn what_a_dead_process_left_is_taken_over() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("history.sqlite");
        let journal = dir.path().join("history.journal");
        let settings = config::Config::default().history;
        let history = History::open(&path, &settings, false).expect("opened");
        history.add(record(1)).await.expect("added");
        drop(history);
        // It died after three more answers, and while it was writing a fifth line.
        let line = |number| serde_json::to_string(&record(number)).expect("json") + "\n";
        let mut text: String = (1..=4).map(line).collect();
        text.push_str(&line(5)[..90]);
        fs::write(&journal, text).expect("written");
        let history = History::open(&path, &settings, false).expect("opened");
        for number in 1..=5 {
            let found = history.get(&Tenant::admin(), record(number).id).await;
            let found = found.expect("read");
            assert_eq!(found, (number < 5).then(|| record(number)));
        }
        assert_eq!(fs::metadata(&journal).expect("journal").len(), 0);
        history.add(record(6)).await.expect("added");
        assert!(
            fs::read_to_string(&journal)
                .expect("journal")
                .ends_with("}\n")
        );
    }

    #[tokio::test]
    async fn when_nothing_can_be_written_nobody_waits_long_and_nothing_is_lost() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("history.sqlite");
        let settings = config::Config::default().history;
        let history = History::open(&path, &settings, false).expect("opened");
        let other = rusqlite::Connection::open(&path).expect("opened");
        other.execute_batch("BEGIN IMMEDIATE").expect("locked");
        history.add(record(0)).await.expect("added");
        history.until(|progress| !progress.works).await;
        history.check().expect("there are places left");
        let since = std::time::Instant::now();
        let mut added = 1;
        let refused = loop {
            match history.add(record(added)).await {
                Ok(()) => added += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(refused.code(), "unavailable");
        assert_eq!(history.check(), Err(refused));
        let admin = Tenant::admin();
        let list = || history.list(&admin, crate::history::Query::default());
        let lists = futures_util::future::join_all((0..300).map(|_| list()));
        for page in lists.await {
            assert!(page.expect("read").runs.is_empty());
        }
        assert!(since.elapsed() < crate::history::PATIENCE);
        other.execute_batch("ROLLBACK").expect("unlocked");
        history.until(|progress| progress.works).await;
        history.add(record(added)).await.expect("added");
        for number in 0..=added {
            let found = history.get(&Tenant::admin(), record(number).id).await;
            assert_eq!(found.expect("read"), Some(record(number)));
        }
    }

    /// A question takes as long as there are runs to look at. However many are asked, threads are left for others.
    #[tokio::test]
    async fn questions_take_turns() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("history.sqlite");
        let settings = config::Config::default().history;
        let history = History::open(&path, &settings, true).expect("opened");
        history.add(record(0)).await.expect("added");
        let admin = Tenant::admin();
        assert!(history.get(&admin, record(0).id).await.is_ok());
        let threads = || fs::read_dir("/proc/self/task").expect("tasks").count();
        let before = threads();
        let reader = std::sync::Arc::clone(&history.reader);
        let (held, holds) = std::sync::mpsc::channel::<()>();
        let busy = std::thread::spawn(move || {
            let _reader = reader.lock();
            let _ = holds.recv();
        });
        let asking: Vec<_> = (0..50)
            .map(|_| {
                let (history, admin) = (history.clone(), admin.clone());
                let query = crate::history::Query::default();
                tokio::spawn(async move { history.list(&admin, query).await })
            })
            .collect();
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        // The one that keeps them waiting, and the one that waits.
        assert!(threads() <= before + 3, "{before} {}", threads());
        // Who leaves takes no one's place with it.
        asking
            .iter()
            .take(40)
            .for_each(tokio::task::JoinHandle::abort);
        drop(held);
        busy.join().expect("a thread");
        for asked in asking.into_iter().skip(40) {
            let page = asked.await.expect("a task").expect("read");
            assert_eq!(page.runs.len(), 1);
        }
    }

    #[test]
    fn it_does_not_grow() {
        let dir = tempfile::tempdir().expect("directory");
        let (mut journal, left) = Journal::open(&dir.path().join("j")).expect("opened");
        assert!(left.is_empty());
        for number in 0..5_000 {
            journal.add(&record(number)).expect("added");
            assert!(journal.bytes < LARGE + 2_000);
            journal.settle(1).expect("settled");
        }
    }
}
