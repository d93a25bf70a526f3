//! Kinds of failure that mean the same in every language.

use belljar_spec::{ErrorInfo, RunResult, Status};

use super::hint::SHELLS;
use super::meant;

/// Of any language, in its message. Some call it a file that is not there.
pub const TOO_MANY_FILES: &str = "too many open files";

/// The first row whose words occur decides; words are of the error's type, then of its message.
const BY_TYPE: &[(&str, &[&str])] = &[
    (
        "import",
        &[
            "ModuleNotFoundError",
            "ImportError",
            "LoadError",
            "NoClassDefFoundError",
            "ClassNotFoundException",
        ],
    ),
    (
        "syntax",
        &["SyntaxError", "IndentationError", "TabError", "ParseError"],
    ),
    (
        "recursion",
        &["RecursionError", "StackOverflowError", "SystemStackError"],
    ),
    (
        "name",
        &["NameError", "UnboundLocalError", "ReferenceError"],
    ),
    (
        "attribute",
        &["AttributeError", "NoMethodError", "NoSuchMethodError"],
    ),
    (
        "index",
        &[
            "IndexError",
            "KeyError",
            "IndexOutOfBoundsException",
            "ArrayIndexOutOfBoundsException",
            "StringIndexOutOfBoundsException",
            "NoSuchElementException",
            "out_of_range",
            "StopIteration",
            "OutOfBounds",
            "OutOfBoundsException",
            "OutOfRangeException",
            "LookupError",
        ],
    ),
    (
        "type",
        &[
            "TypeError",
            "ClassCastException",
            "ArgumentError",
            "ArgumentCountError",
            "bad_cast",
            "NullPointerException",
            "UnsupportedOperationException",
            "ArrayStoreException",
        ],
    ),
    (
        "value",
        &[
            "ValueError",
            "ZeroDivisionError",
            "DivisionByZeroError",
            "ArithmeticException",
            "NumberFormatException",
            "IllegalArgumentException",
            "UnicodeError",
            "UnicodeDecodeError",
            "UnicodeEncodeError",
            "JSONDecodeError",
            "OverflowError",
            "RangeError",
            "ArithmeticError",
            "FloatingPointError",
            "IllegalStateException",
            "InputMismatchException",
            "DateTimeParseException",
            "domain_error",
            "length_error",
            "invalid_argument",
            "FloatDomainError",
            "FrozenError",
        ],
    ),
    (
        "file",
        &[
            "FileNotFoundError",
            "FileExistsError",
            "IsADirectoryError",
            "NotADirectoryError",
            "FileNotFoundException",
            "NoSuchFileException",
            "ENOENT",
        ],
    ),
    (
        "permission",
        &[
            "PermissionError",
            "AccessDeniedException",
            "EACCES",
            "EPERM",
            "ImportNotAllowed",
        ],
    ),
    (
        "network",
        &[
            "ConnectionError",
            "ConnectionRefusedError",
            "URLError",
            "HTTPError",
            "gaierror",
            "SocketError",
            "UnknownHostException",
            "ConnectException",
            "SocketException",
            "ECONNREFUSED",
            "ConnectionResetError",
            "ConnectionAbortedError",
            "RemoteDisconnected",
            "ConnectError",
            "ConnectTimeout",
            "MaxRetryError",
            "ProxyError",
            "SSLError",
        ],
    ),
    (
        "memory",
        &[
            "MemoryError",
            "OutOfMemoryError",
            "NoMemoryError",
            "bad_alloc",
        ],
    ),
    ("timeout", &["TimeoutError", "TimeoutException", "Timeout"]),
    (
        "assertion",
        &["AssertionError", "AssertionFailure", "AssertError"],
    ),
    ("interrupt", &["KeyboardInterrupt", "Interrupt"]),
];
const BY_MESSAGE: &[(&str, &[&str])] = &[
    (
        "attribute",
        &[
            "can't locate object method",
            "can't call method",
            "call to a member function",
            "call to undefined method",
        ],
    ),
    (
        "import",
        &[
            "no module named",
            "cannot find module",
            "cannot find package",
            "cannot load such file",
            "can't locate",
            "there is no package called",
            "module '",
            "package not found",
        ],
    ),
    (
        "syntax",
        &[
            "syntax error",
            "unexpected token",
            "parse error",
            "unexpected end",
            "unexpected symbol",
            "unexpected eof while looking for",
            "missing right curly",
            "unexpected numeric constant",
            "unexpected string constant",
            "unexpected assignment",
            "unexpected input",
            "unclosed '",
            "expected near ",
            "unfinished string near",
            "bad substitution",
        ],
    ),
    (
        "recursion",
        &[
            "maximum call stack",
            "stack overflow",
            "stack level too deep",
            "maximum recursion",
            "has overflowed its stack",
            "c stack usage",
            "nested too deeply",
            "infinite recursion",
        ],
    ),
    (
        "index",
        &[
            "index out of range",
            "out of range",
            "index out of bounds",
            "subscript out of bounds",
            "undefined array key",
            "undefined offset",
            "undefined columns selected",
        ],
    ),
    (
        "value",
        &[
            "divide by zero",
            "division by zero",
            "divide by 0",
            "divided by 0",
            "division by 0",
            "invalid literal",
            "invalid value for",
            "on a `none` value",
            "parseinterror",
            "parsefloaterror",
            "utf8error",
        ],
    ),
    (
        "memory",
        &[
            "out of memory",
            "cannot allocate memory",
            "allowed memory size",
            "not enough memory",
            "cannot allocate vector",
        ],
    ),
    // PHP opens addresses like files.
    ("network", &["php_network_getaddresses"]),
    (
        "file",
        &[
            "no such file or directory",
            "cannot open file",
            "file exists",
            "is a directory",
            "failed to open stream",
            "failed opening",
            "cannot open the connection",
            TOO_MANY_FILES,
        ],
    ),
    (
        "permission",
        &[
            "permission denied",
            "operation not permitted",
            "read-only file system",
        ],
    ),
    (
        "network",
        &[
            "network is unreachable",
            "could not resolve",
            "connection refused",
            "name resolution",
            "getaddrinfo",
            "unable to resolve host",
            "connect: ",
            "fetch failed",
        ],
    ),
    (
        "assertion",
        &[
            "assertion failed",
            "assertion `",
            "assertion '",
            "is not true",
            "are not all true",
        ],
    ),
    (
        "name",
        &[
            "is not defined",
            "undefined variable",
            "undefined local variable",
            "undefined function",
            "undefined constant",
            "bareword \"",
            "call to undefined",
            "command not found",
            "object '",
            "a nil value (global",
            "undefined subroutine",
            "requires explicit package name",
            "could not find function",
            "unbound variable",
            "class \"",
        ],
    ),
    (
        "attribute",
        &[
            "has no attribute",
            "undefined method",
            "attempt to index",
            "a nil value (field",
            "a nil value (method",
            "cannot read propert",
        ],
    ),
    (
        "type",
        &[
            "invalid memory address or nil pointer",
            "nil pointer dereference",
            "entry in nil map",
            "a nil value",
            "attempt to perform arithmetic",
            "attempt to concatenate",
            "attempt to compare",
            "attempt to call",
            "is not iterable",
            "not an array reference",
            "not a hash reference",
            "not a code reference",
            "not a scalar reference",
            "can't use string (",
            "can't use an undefined value",
            "type mismatch",
            "non-numeric",
        ],
    ),
    (
        "disk",
        &[
            "no space left on device",
            "disk quota",
            "out of free disk space",
        ],
    ),
    (
        "process",
        &[
            "resource temporarily unavailable",
            "can't start new thread",
            "cannot fork",
            "newosproc",
        ],
    ),
];

pub fn of(language: &str, result: &RunResult, error: &ErrorInfo) -> &'static str {
    let category = named(language, result, &error.kind, &error.message);
    // Without a network, sockets are refused as such.
    if category == "permission" && error.traceback.contains("socket") {
        return "network";
    }
    category
}

fn named(language: &str, result: &RunResult, kind: &str, message: &str) -> &'static str {
    match result.status {
        Status::TimedOut => return "timeout",
        Status::OutOfMemory => return "memory",
        Status::CompileFailed => return "compile",
        Status::Killed if kind == "Killed" => return "killed",
        // What ends a session's interpreter would have ended a program.
        Status::Failed
            if result.signal.is_some()
                && (kind.starts_with("SIG") || kind == "InterpreterDied") =>
        {
            return "signal";
        }
        _ => {}
    }
    let name = kind.rsplit(['.', ':', '\\']).next().unwrap_or(kind);
    let by_type = BY_TYPE.iter().find(|(_, names)| names.contains(&name));
    // A type error of JavaScript, and a runtime error of others, says more in its message.
    let vague = by_type.is_none_or(|(category, _)| matches!(*category, "type" | "value"));
    let text = message.to_lowercase();
    // JavaScript: of an object, it is a name that the object does not have.
    if let Some(called) = text.strip_suffix(" is not a function") {
        return if called.contains('.') {
            "attribute"
        } else {
            "type"
        };
    }
    // Java takes this for a lack of memory.
    if text.contains("unable to create native thread") {
        return "process";
    }
    // Any sign and any word of the language may follow.
    if language == "r" && text.contains("unexpected '") {
        return "syntax";
    }
    // So says a shell that is not bash.
    if SHELLS.contains(&language) && meant::absent(&text).is_some() {
        return "name";
    }
    // JavaScript says of data that it is no JSON what it says of code.
    if name == "SyntaxError" && text.contains(" json") {
        return "value";
    }
    let by_message = BY_MESSAGE
        .iter()
        .find(|(_, parts)| parts.iter().any(|part| text.contains(part)));
    match (by_type, by_message) {
        (_, Some((category, _))) if vague => category,
        (Some((category, _)), _) | (None, Some((category, _))) => category,
        (None, None) => "other",
    }
}
