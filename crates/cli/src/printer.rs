//! Prints what a program says on a thread of its own: whoever reads may take their time, a deadline does not wait for them.

use std::io;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use anyhow::Result;
use belljar::Stream;

use crate::terminal::{Lost, Output};

/// What waits to be printed is no more than the program may say, which is kept for the result anyway.
#[derive(Default)]
pub struct Printer {
    /// From the first piece on.
    going: Option<(Sender<Piece>, JoinHandle<Lost>)>,
    lost: Lost,
}

type Piece = (Stream, Vec<u8>);

impl Printer {
    pub fn print(&mut self, stream: Stream, bytes: &[u8]) {
        if self.going.is_none() {
            let (sender, pieces) = mpsc::channel();
            let printing = thread::Builder::new().spawn(move || {
                let mut lost = Lost::default();
                print_all(pieces, &mut lost);
                lost
            });
            // Without a thread there is no better way than to wait for the reader.
            let Ok(thread) = printing else {
                return print_all([(stream, bytes.to_vec())], &mut self.lost);
            };
            self.going = Some((sender, thread));
        }
        if let Some((sender, _)) = &self.going {
            let _ = sender.send((stream, bytes.to_vec()));
        }
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

/// If our reader has gone, the output goes nowhere, as under a pager that was quit.
fn print_all(pieces: impl IntoIterator<Item = Piece>, lost: &mut Lost) {
    let (mut stdout, mut stderr) = (Output::new(io::stdout()), Output::new(io::stderr()));
    for (stream, bytes) in pieces {
        lost.see(match stream {
            Stream::Stdout => stdout.write(&bytes),
            Stream::Stderr => stderr.write(&bytes),
        });
    }
}
