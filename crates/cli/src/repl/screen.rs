//! What a person at `belljar repl` sees and types.

use std::borrow::Cow;
use std::fs::{self, DirBuilder};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar::OutputDirectory;
use belljar_spec::{Display, RunResult, State, Status};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Completer, Editor, Helper, Hinter};
use tokio::net::unix::pipe::Receiver;

use crate::complete_input::is_complete;
use crate::run::{compiler_said, compiler_stopped, cut_off};
use crate::serve::state_directory;
use crate::terminal::{self, Lost, Output, note};

const O_NONBLOCK: i32 = 0o4000;

/// The terminal as something that code reads.
pub fn keyboard() -> io::Result<Receiver> {
    // Opened anew: not to block is its own affair then, and what nobody reads stays for the next line.
    let terminal = fs::OpenOptions::new()
        .read(true)
        .custom_flags(O_NONBLOCK)
        .open("/dev/tty");
    // To the runtime a terminal is like a pipe: something to wait for, then read.
    terminal.and_then(Receiver::from_file_unchecked)
}

#[derive(Completer, Helper, Hinter)]
struct Lines {
    language: String,
    colour: bool,
}

impl Highlighter for Lines {
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(
        &'s self,
        prompt: &'p str,
        _default: bool,
    ) -> Cow<'b, str> {
        if self.colour {
            Cow::Owned(format!("\x1b[1;36m{prompt}\x1b[0m"))
        } else {
            Cow::Borrowed(prompt)
        }
    }
}

impl Validator for Lines {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if is_complete(&self.language, context.input()) {
            ValidationResult::Valid(None)
        } else {
            ValidationResult::Incomplete
        })
    }
}

/// What a person sees and types.
pub struct Terminal {
    editor: Editor<Lines, DefaultHistory>,
    language: String,
    prompt: String,
    history: Option<PathBuf>,
    /// Where displays are saved, and what it is called. Without a name of the caller's it is made when there is one.
    displays: Option<(PathBuf, OutputDirectory)>,
    saved: usize,
    colour: bool,
    /// There has been code that seems to read what is typed.
    is_read: bool,
}

impl Terminal {
    pub fn new(language: &str, displays: Option<(PathBuf, OutputDirectory)>) -> Result<Self> {
        let colour = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let mut editor = Editor::new()?;
        editor.set_helper(Some(Lines {
            language: language.to_owned(),
            colour,
        }));
        let history = state_directory().ok();
        let history = history.map(|state| state.join(format!("{language}-history")));
        if let Some(file) = &history {
            // A first start has none.
            let _ = editor.load_history(file);
        }
        Ok(Self {
            editor,
            language: language.to_owned(),
            prompt: format!("{language}> "),
            history,
            displays,
            saved: 0,
            colour,
            is_read: false,
        })
    }

    pub fn greet(version: &str, keeps_state: bool) {
        if io::stdin().is_terminal() {
            // Who expects variables to stay is told before they are missed.
            let apart = if keeps_state {
                ""
            } else {
                "\nEach input is a program of its own here: files stay, variables do not."
            };
            let _ = terminal::say(format_args!(
                "{version} under glass. :help for help, Ctrl-D to leave.{apart}"
            ));
        }
    }

    /// `None`: the end.
    pub fn read(&mut self) -> Result<Option<String>> {
        if !io::stdin().is_terminal() {
            return self.read_piped();
        }
        loop {
            match self.editor.readline(&self.prompt) {
                Ok(input) => {
                    let _ = self.editor.add_history_entry(input.trim_end());
                    return Ok(Some(input));
                }
                // Nothing is running: only the line is given up.
                Err(ReadlineError::Interrupted) => {}
                Err(ReadlineError::Eof) => return Ok(None),
                Err(error) => return Err(error).context("cannot read from the terminal"),
            }
        }
    }

    /// The same without anybody at it. What is unfinished when the input ends is run too: nobody can finish it, and the interpreter
    /// says what is missing.
    fn read_piped(&self) -> Result<Option<String>> {
        let mut input = String::new();
        for line in io::stdin().lines() {
            input.push_str(&line.context("cannot read the standard input")?);
            if is_complete(&self.language, &input) {
                return Ok(Some(input));
            }
            input.push('\n');
        }
        Ok((!input.is_empty()).then_some(input))
    }

    /// Whether code should read what is typed: once there has been code that seems to want it. Before that what is typed ahead is for
    /// the next line.
    pub fn is_read_by(&mut self, code: &str) -> bool {
        let wanting = ["input", "stdin", "breakpoint", "pdb", "getpass"];
        self.is_read |= wanting.iter().any(|word| code.contains(word));
        self.is_read && io::stdin().is_terminal()
    }

    pub fn remember(&mut self) {
        if let Some(file) = &self.history
            && let Some(directory) = file.parent()
            && DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)
                .is_ok()
        {
            let _ = self.editor.save_history(file);
        }
    }

    /// What the code's own output does not say. An error if its value could not be written.
    pub fn tell(&self, result: &RunResult) -> Result<()> {
        let mut lost = Lost::default();
        if let Some(text) = &result.value_text {
            let mut out = Output::new(io::stdout());
            lost.see(out.write(format!("{text}\n").as_bytes()));
        }
        compiler_said(result);
        cut_off(result);
        if let (Status::CompileFailed, Some(compile)) = (result.status, &result.compile) {
            compiler_stopped(compile);
        }
        if let Some(text) = ended(result) {
            let (on, off) = if self.colour && io::stderr().is_terminal() {
                ("\x1b[33m", "\x1b[0m")
            } else {
                ("", "")
            };
            let _ = writeln!(io::stderr(), "{on}belljar: {text}{off}");
        }
        lost.tell()
    }

    /// Text is shown as it is; what else the code showed is saved, and this says where.
    pub fn show(&mut self, display: &Display) {
        match text_of(display) {
            Some(text) => drop(Output::new(io::stdout()).write(&text)),
            None => self.save(display),
        }
    }

    fn save(&mut self, display: &Display) {
        let bytes = STANDARD.decode(&display.data);
        self.saved += 1;
        let name = format!("display-{}.{}", self.saved, ending(&display.mime));
        let saved = self.directory().and_then(|(directory, opened)| {
            opened.create(Path::new(&name))?.write_all(&bytes?)?;
            Ok(directory.join(&name))
        });
        match saved {
            Ok(path) => drop(terminal::say(format_args!(
                "[{} saved as {}]",
                display.mime,
                path.display()
            ))),
            Err(error) => note(format_args!("a display could not be saved: {error:#}")),
        }
    }

    fn directory(&mut self) -> Result<&(PathBuf, OutputDirectory)> {
        if self.displays.is_none() {
            let name = format!("belljar-repl-{}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            // Not one that somebody has put there for us, and for nobody else to look at.
            DirBuilder::new().mode(0o700).create(&directory)?;
            let opened = OutputDirectory::open(&directory, &[])?;
            self.displays = Some((directory, opened));
        }
        self.displays.as_ref().context("no directory")
    }
}

/// How it ended, where that is not as it should.
fn ended(result: &RunResult) -> Option<String> {
    let text = match (result.status, result.state) {
        (Status::TimedOut, State::Kept) => "the time was up; variables are kept",
        (Status::TimedOut, State::None) => "the time was up",
        (Status::TimedOut, State::Lost) => {
            "the time was up and the code did not yield; variables are lost"
        }
        (Status::OutOfMemory, State::Kept) => "a process ran out of memory; variables are kept",
        (Status::OutOfMemory, State::None) => "out of memory",
        (Status::OutOfMemory, State::Lost) => "out of memory; variables are lost",
        (Status::Killed, State::Kept) => "interrupted",
        (_, State::Lost) => "the interpreter has ended; variables are lost",
        (_, State::None) => return Some(format!("signal {} ended it", result.signal?)),
        _ => return None,
    };
    Some(text.to_owned())
}

/// What a terminal can show of it, as a line; `None` if it has a better form.
pub fn text_of(display: &Display) -> Option<Vec<u8>> {
    if display.mime != "text/plain" {
        return None;
    }
    let mut text = STANDARD.decode(&display.data).ok()?;
    if !text.ends_with(b"\n") {
        text.push(b'\n');
    }
    Some(text)
}

fn ending(mime: &str) -> &'static str {
    match mime {
        "image/png" => "png",
        "image/jpeg" => "jpg",
        "image/svg+xml" => "svg",
        "text/html" => "html",
        "text/markdown" => "md",
        "text/latex" => "tex",
        "application/json" => "json",
        "application/pdf" => "pdf",
        _ if mime.starts_with("text/") => "txt",
        _ => "bin",
    }
}
