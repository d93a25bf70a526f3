//! Prints what a program says, on a thread of its own as soon as somebody has to wait: whoever reads may take their time, a deadline
//! does not wait for them.

use std::io::{self, Stderr, Stdout};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use anyhow::Result;
use belljar::{Sink, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};

use crate::terminal::{Lost, Output, has_left};

/// What waits to be printed is no more than the program may say, which is kept for the result anyway.
#[derive(Default)]
pub struct Printer {
    /// Until a thread has them.
    outputs: Option<Outputs>,
    going: Option<(Sender<Piece>, JoinHandle<Lost>)>,
    lost: Lost,
    /// Of standard output and standard error: whether nobody reads it any more.
    left: Arc<[AtomicBool; 2]>,
}

type Piece = (Stream, Vec<u8>);

/// What a pipe that has room at all has room for.
const AT_ONCE: usize = 4096;

impl Sink for Printer {
    fn output(&mut self, stream: Stream, bytes: &[u8]) {
        if self.going.is_none() {
            let mut outputs = self
                .outputs
                .take()
                .unwrap_or_else(|| Outputs::new(&self.left));
            if bytes.len() <= AT_ONCE && Outputs::has_room(stream) {
                self.lost.see(outputs.write(stream, bytes));
                self.outputs = Some(outputs);
                return;
            }
            let (sender, pieces) = mpsc::channel::<Piece>();
            let printing = thread::Builder::new().spawn(move || {
                let mut lost = Lost::default();
                for (stream, bytes) in pieces {
                    lost.see(outputs.write(stream, &bytes));
                }
                lost
            });
            // Without a thread there is no better way than to wait for the reader.
            let Ok(thread) = printing else {
                let mut outputs = Outputs::new(&self.left);
                self.lost.see(outputs.write(stream, bytes));
                return self.outputs = Some(outputs);
            };
            self.going = Some((sender, thread));
        }
        if let Some((sender, _)) = &self.going {
            let _ = sender.send((stream, bytes.to_vec()));
        }
    }

    fn has_left(&self, stream: Stream) -> bool {
        self.left[stream as usize].load(Ordering::Relaxed)
    }
}

impl Printer {
    /// Whether somebody has yet to read something.
    pub fn is_busy(&self) -> bool {
        self.going.is_some()
    }

    /// Returns when all of it has been taken; an error if it was not, other than by a reader that has gone.
    pub fn finish(self) -> Result<()> {
        if let Some((sender, thread)) = self.going {
            drop(sender);
            if let Ok(lost) = thread.join() {
                lost.tell()?;
            }
        }
        self.lost.tell()
    }
}

struct Outputs {
    stdout: Output<Stdout>,
    stderr: Output<Stderr>,
    left: Arc<[AtomicBool; 2]>,
}

impl Outputs {
    fn new(left: &Arc<[AtomicBool; 2]>) -> Self {
        Self {
            stdout: Output::new(io::stdout()),
            stderr: Output::new(io::stderr()),
            left: Arc::clone(left),
        }
    }

    fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let written = match stream {
            Stream::Stdout => self.stdout.write(bytes),
            Stream::Stderr => self.stderr.write(bytes),
        };
        if has_left(&written) {
            self.left[stream as usize].store(true, Ordering::Relaxed);
        }
        written
    }

    /// Whether a little can be written without waiting for anybody. A terminal may have room for less.
    fn has_room(stream: Stream) -> bool {
        let (stdout, stderr) = (io::stdout(), io::stderr());
        let fd = match stream {
            Stream::Stdout => stdout.as_fd(),
            Stream::Stderr => stderr.as_fd(),
        };
        let kind = fstat(fd).map(|at| FileType::from_raw_mode(at.st_mode));
        if !matches!(kind, Ok(FileType::Fifo | FileType::RegularFile)) {
            return false;
        }
        let mut asked = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
        poll(&mut asked, Some(&Timespec::default())).is_ok_and(|found| found == 1)
    }
}
