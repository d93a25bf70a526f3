//! What would help.

use std::collections::BTreeSet;

use belljar_spec::{ErrorInfo, RunResult, nearest};

/// Modules whose package has another name.
const PACKAGES: [(&str, &str); 16] = [
    ("PIL", "pillow"),
    ("bs4", "beautifulsoup4"),
    ("cv2", "opencv-python-headless"),
    ("dateutil", "python-dateutil"),
    ("docx", "python-docx"),
    ("dotenv", "python-dotenv"),
    ("fitz", "pymupdf"),
    ("git", "gitpython"),
    ("jwt", "pyjwt"),
    ("magic", "python-magic"),
    ("pptx", "python-pptx"),
    ("serial", "pyserial"),
    ("skimage", "scikit-image"),
    ("sklearn", "scikit-learn"),
    ("yaml", "pyyaml"),
    ("zmq", "pyzmq"),
];

pub fn signal(number: i32) -> &'static str {
    match number {
        4 => " (an illegal instruction)",
        6 => " (it aborted itself)",
        7 | 11 => " (it used memory that is not its own)",
        8 => " (a division by zero or a like mistake)",
        9 => " (it was killed)",
        24 => " (its CPU time was up)",
        25 => " (it wrote a file that was too large)",
        31 => " (it made a system call that is not allowed here)",
        _ => "",
    }
}

pub fn of(category: &str, code: &str, result: &RunResult, error: &ErrorInfo) -> Option<String> {
    let limits = &result.limits;
    let message = &error.message;
    match category {
        "import" => missing_module(message),
        "name" | "attribute" => misspelt(message, code),
        "timeout" => Some(if result.usage.cpu_ms > result.usage.wall_ms * 0.5 {
            format!("It was computing all the time: look for a loop that does not end, or ask for more than {} ms (limits.timeout_ms).", limits.timeout_ms)
        } else {
            format!("It was mostly waiting: for input, a lock, a sleep or a network. There is none here unless asked for. The limit was {} ms (limits.timeout_ms).", limits.timeout_ms)
        }),
        "memory" => Some(format!(
            "The limit was {} MiB (limits.memory_bytes); files in /tmp and the workspace count too. Ask for more, or hold less at one time.",
            limits.memory_bytes >> 20
        )),
        "recursion" => Some("The recursion does not end, or is too deep: check where it stops, or use a loop.".into()),
        "network" => Some("A sandbox has no network unless it is asked for (network).".into()),
        "permission" => Some("Only the workspace and /tmp can be written to; all else is read-only.".into()),
        "file" => Some("The current directory is the workspace; what the code needs there has to be given with `files`.".into()),
        "disk" => Some(format!(
            "The workspace and /tmp together may have {} MiB (limits.disk_bytes).",
            limits.disk_bytes >> 20
        )),
        "process" => Some(format!(
            "At most {} processes and threads may run at one time (limits.processes).",
            limits.processes
        )),
        _ => None,
    }
}

/// The first text in quotes.
fn quoted(message: &str) -> Option<&str> {
    let open = message.find(['\'', '"', '`', '‘'])?;
    let rest = &message[open..];
    let mut chars = rest.chars();
    let mark = chars.next()?;
    let inside = chars.as_str();
    let close = match mark {
        '`' => ['`', '\''],
        '‘' => ['’', '\''],
        mark => [mark, mark],
    };
    Some(&inside[..inside.find(close)?])
}

fn missing_module(message: &str) -> Option<String> {
    // `cannot load such file -- name` and `Can't locate Name.pm in @INC` have no quotes.
    let name = quoted(message).or_else(|| message.rsplit("-- ").next())?;
    let top = name
        .split(['.', '/'])
        .next()
        .filter(|top| !top.is_empty())?;
    let package = PACKAGES
        .iter()
        .find(|(module, _)| *module == top)
        .map_or(top, |(_, package)| package);
    Some(format!(
        "{top} is not installed here; it comes with the package {package}. Use what is there, or a template or image that has it."
    ))
}

/// A name in the code that looks like the one that is not known.
fn misspelt(message: &str, code: &str) -> Option<String> {
    let words: Vec<_> = message
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|word| !word.is_empty())
        .collect();
    let unknown = match quoted(message) {
        Some(name) if !message.contains("has no attribute") => name,
        Some(_) => message.rsplit(['\'', '"']).nth(1)?,
        None => words.first()?,
    };
    let known: BTreeSet<_> = code
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|word| {
            word.len() > 1 && *word != unknown && !word.starts_with(|c: char| c.is_ascii_digit())
        })
        .take(100_000)
        .collect();
    let meant = nearest(unknown, known)?;
    Some(format!("{unknown} is not known; did you mean {meant}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_name_what_is_meant() {
        assert!(
            missing_module("No module named 'cv2'")
                .unwrap()
                .contains("opencv-python-headless")
        );
        assert!(
            missing_module("No module named 'pandas.core'")
                .unwrap()
                .contains("package pandas")
        );
        assert!(
            missing_module("cannot load such file -- nokogiri")
                .unwrap()
                .contains("nokogiri")
        );
        let code = "total = 1\nprint(totl)";
        assert!(
            misspelt("name 'totl' is not defined", code)
                .unwrap()
                .contains("mean total")
        );
        assert!(
            misspelt("totl is not defined", code)
                .unwrap()
                .contains("mean total")
        );
        let code = "class A:\n  def append_all(self): pass\nA().apend_all()";
        let hint = misspelt("'A' object has no attribute 'apend_all'", code).unwrap();
        assert!(hint.contains("mean append_all"), "{hint}");
    }
}
