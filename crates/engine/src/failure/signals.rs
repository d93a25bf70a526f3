//! Signals by which programs end, as people know them.

/// Its name, as the C library has it.
pub(super) fn name(number: i32) -> String {
    let name = match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        16 => "SIGSTKFLT",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        26 => "SIGVTALRM",
        27 => "SIGPROF",
        29 => "SIGIO",
        30 => "SIGPWR",
        31 => "SIGSYS",
        other => return format!("SIG{other}"),
    };
    name.into()
}

/// What it means, in brackets, if it means something.
pub fn signal(number: i32) -> &'static str {
    match number {
        1 => " (it was told that its terminal had gone)",
        2 => " (it was interrupted)",
        3 => " (it was told to quit)",
        4 => " (an illegal instruction)",
        5 => " (a trap for a debugger)",
        6 => " (it aborted itself)",
        7 | 11 => " (it used memory that is not its own)",
        8 => " (a division by zero or a like mistake)",
        9 => " (it was killed)",
        13 => " (it wrote to what nobody reads any more)",
        14 | 26 | 27 => " (a timer that it had set ran out)",
        15 => " (it was told to end)",
        24 => " (its CPU time was up)",
        25 => " (it wrote a file that was too large)",
        31 => " (it made a system call that is not allowed here)",
        _ => "",
    }
}

/// The same as a sentence of its own; never empty.
pub(super) fn message(number: i32) -> &'static str {
    match signal(number).trim_matches([' ', '(', ')']) {
        "" => "a signal ended it that it did not handle",
        meaning => meaning,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_end_a_program_have_a_message() {
        for (number, told, meaning) in [
            (1, "SIGHUP", "it was told that its terminal had gone"),
            (12, "SIGUSR2", "a signal ended it that it did not handle"),
            (25, "SIGXFSZ", "it wrote a file that was too large"),
            (26, "SIGVTALRM", "a timer that it had set ran out"),
            (40, "SIG40", "a signal ended it that it did not handle"),
        ] {
            assert_eq!((name(number).as_str(), message(number)), (told, meaning));
        }
    }
}
