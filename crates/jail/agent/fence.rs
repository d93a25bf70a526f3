//! Landlock rules for the commands of a container: a fence around files that holds even where a mount shows too much.
//!
//! The rules are the engine's. They bind commands, not the agent, which has terminals to open that no command may.

use alloc::vec::Vec;

use crate::call::{call, nr};
use crate::sys::{self, Fd};
use crate::system::{self, EACCES, ELOOP, ENOTDIR, Open};
use crate::word;

/// Before this version a rename between directories cannot be allowed, which too much software needs.
const FLOOR: usize = 2;
/// The last one whose rights are asked for.
const NEWEST: usize = 6;

const EXECUTE: u32 = 1;
const READ_FILE: u32 = 1 << 2;
const READ_DIR: u32 = 1 << 3;
/// Those that make sense for what is no directory: execute, write, read, truncate, commands to devices.
const OF_FILES: u32 = 0b111 | 1 << 14 | 1 << 15;

/// Flags of the frame.
const NETWORK: u8 = 1;
/// Everything in `/` may be read, but for the places of the kernel, which have rules of their own.
const WHOLE_ROOT: u8 = 2;
/// Of a rule: only for a command at a terminal.
const AT_TERMINAL: u32 = 1 << 31;

pub struct Fence {
    plain: Fd,
    at_terminal: Fd,
    /// 0: the kernel has none.
    pub version: u32,
}

impl Fence {
    /// Payload: flags, then rules: rights, and a path that ends with a NUL.
    pub fn build(payload: &[u8]) -> Result<Self, i32> {
        const TELL_VERSION: usize = 1;
        let version = match call(nr::LANDLOCK_CREATE_RULESET, [0, 0, TELL_VERSION, 0, 0, 0]) {
            Ok(version) if version >= FLOOR => version.min(NEWEST),
            _ => {
                return Ok(Self {
                    plain: -1,
                    at_terminal: -1,
                    version: 0,
                });
            }
        };
        Ok(Self {
            plain: rules(payload, version, false)?,
            at_terminal: rules(payload, version, true)?,
            version: version as u32,
        })
    }

    /// For good, for this process and what comes after it.
    pub fn enter(&self, at_terminal: bool) -> Result<(), i32> {
        let rules = if at_terminal {
            self.at_terminal
        } else {
            self.plain
        };
        if rules < 0 {
            return Ok(());
        }
        call(nr::LANDLOCK_RESTRICT_SELF, [rules as usize, 0, 0, 0, 0, 0]).map(drop)
    }
}

fn rules(payload: &[u8], version: usize, at_terminal: bool) -> Result<Fd, i32> {
    let (&flags, mut rest) = payload.split_first().unwrap_or((&0, &[]));
    let rights = match version {
        2 => 14,
        3 | 4 => 15,
        _ => 16,
    };
    let handled: u32 = (1 << rights) - 1;
    let net = if flags & NETWORK == 0 { 0b11 } else { 0 };
    // What is not in it yet when the kernel is older is not shown to it.
    let attributes = [u64::from(handled), net];
    let size = if version < 4 { 8 } else { 16 };
    let ruleset = call(
        nr::LANDLOCK_CREATE_RULESET,
        [attributes.as_ptr() as usize, size, 0, 0, 0, 0],
    )? as Fd;
    if flags & WHOLE_ROOT != 0 {
        allow_root(ruleset)?;
    }
    while rest.len() > 4 {
        let wanted = word(rest, 0);
        let Some(end) = rest[4..].iter().position(|&byte| byte == 0) else {
            sys::exit(84)
        };
        let (path, more) = rest[4..].split_at(end + 1);
        if wanted & AT_TERMINAL == 0 || at_terminal {
            allow(ruleset, path, wanted & handled)?;
        }
        rest = more;
    }
    Ok(ruleset)
}

/// The names in `/` can be listed, and all of it but the kernel's own places read.
fn allow_root(ruleset: Fd) -> Result<(), i32> {
    allow(ruleset, b"/\0", READ_DIR)?;
    let root = system::open_at(-1, b"/\0", Open::Directory)?;
    let mut names: Vec<Vec<u8>> = Vec::new();
    let listed = system::list(root, |name| {
        if ![&b"dev\0"[..], b"proc\0", b"sys\0"].contains(&name) {
            names.push([b"/", name].concat());
        }
        true
    });
    sys::close(root);
    listed?;
    names
        .iter()
        .try_for_each(|path| allow(ruleset, path, EXECUTE | READ_FILE | READ_DIR))
}

/// What is not there needs no rule.
fn allow(ruleset: Fd, path: &[u8], rights: u32) -> Result<(), i32> {
    const PATH_BENEATH: usize = 1;
    let fd = match system::open_path(path) {
        Ok(fd) => fd,
        Err(sys::ENOENT | ENOTDIR | EACCES | ELOOP) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    let is_directory = system::stat(fd, b"\0").is_ok_and(|s| s.kind() == system::Kind::Directory);
    let rights = if is_directory {
        rights
    } else {
        rights & OF_FILES
    };
    // The kernel's struct has no gap in it: rights in eight bytes, the descriptor in four.
    let mut rule = [0_u8; 12];
    rule[..4].copy_from_slice(&rights.to_le_bytes());
    rule[8..].copy_from_slice(&fd.to_le_bytes());
    let added = call(
        nr::LANDLOCK_ADD_RULE,
        [
            ruleset as usize,
            PATH_BENEATH,
            rule.as_ptr() as usize,
            0,
            0,
            0,
        ],
    );
    sys::close(fd);
    added.map(drop)
}
