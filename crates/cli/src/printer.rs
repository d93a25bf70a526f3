//! Prints what a program says on a thread of its own: whoever reads may take their time, a deadline does not wait for them.

use std::io;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use belljar::Stream;

use crate::terminal::Output;

/// What waits to be printed is no more than the program may say, which is kept for the result anyway.
#[derive(Default)]
pub struct Printer {
    /// From the first piece on.
    going: Option<(Sender<Piece>, JoinHandle<()>)>,
}

type Piece = (Stream, Vec<u8>);

impl Printer {
    pub fn print(&mut self, stream: Stream, bytes: &[u8]) {
        if self.going.is_none() {
            let (sender, pieces) = mpsc::channel();
            let printing = thread::Builder::new().spawn(move || print_all(pieces));
            // Without a thread there is no better way than to wait for the reader.
            let Ok(thread) = printing else {
                return print_all([(stream, bytes.to_vec())]);
            };
            self.going = Some((sender, thread));
        }
        if let Some((sender, _)) = &self.going {
            let _ = sender.send((stream, bytes.to_vec()));
        }
    }

    /// Returns when all of it has been taken.
    pub fn finish(self) {
        if let Some((sender, thread)) = self.going {
            drop(sender);
            let _ = thread.join();
        }
    }
}

/// If our reader has gone, the output goes nowhere, as under a pager that was quit.
fn print_all(pieces: impl IntoIterator<Item = Piece>) {
    let (mut stdout, mut stderr) = (Output::new(io::stdout()), Output::new(io::stderr()));
    for (stream, bytes) in pieces {
        let _ = match stream {
            Stream::Stdout => stdout.write(&bytes),
            Stream::Stderr => stderr.write(&bytes),
        };
    }
}
