//! What programs and compilers really print.

use super::*;

/// Language, what it printed, and what that says: type, message, line.
type Words = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    Option<u32>,
);

const WORDS: &[Words] = &[
    (
        "rust",
        "Error: Os { code: 2, kind: NotFound, message: \"No such file or directory\" }\n",
        "",
        "Os { code: 2, kind: NotFound, message: \"No such file or directory\" }",
        None,
    ),
    (
        "lua",
        "/usr/bin/lua5.4: (error object is a table value)\nstack traceback:\n\t[C]: in function 'error'\n\t/workspace/main.lua:3: in main chunk\n\t[C]: in ?\n",
        "",
        "(error object is a table value)",
        Some(3),
    ),
    (
        "javascript",
        "\n/workspace/main.js:2\nthrow 'words'\n^\nwords\n(Use `node --trace-uncaught ...` to show where the exception was thrown)\n\nNode.js v20.20.2\n",
        "",
        "words",
        Some(2),
    ),
    (
        "javascript",
        "\n/workspace/main.js:1\nthrow {\n^\n{\n  a: 1\n}\n\nNode.js v20.20.2\n",
        "",
        "{",
        Some(1),
    ),
    (
        "javascript",
        "Error: logged\n/workspace/main.js:3\n throw new NotFound('q')}\n ^\n\nNotFound: q\n    at f (/workspace/main.js:3:8)\n",
        "NotFound",
        "q",
        Some(3),
    ),
    (
        "javascript",
        "/workspace/main.js:2\nthrow new E('m\\nn')\n^\n\nE [Error]: m\nn\n    at Object.<anonymous> (/workspace/main.js:2:7)\n",
        "E",
        "m",
        Some(2),
    ),
    (
        "typescript",
        "/workspace/main.ts:1\nthrow new Error()\n^\n\nError\n    at Object.<anonymous> (/workspace/main.ts:1:7)\n",
        "Error",
        "",
        Some(1),
    ),
    (
        "go",
        "2026/01/02 03:04:05 open nope: no such file or directory\n",
        "",
        "open nope: no such file or directory",
        None,
    ),
    (
        "perl",
        "syntax error at /workspace/main.pl line 1, near \"1 {\"\nMissing right curly or square bracket at /workspace/main.pl line 1, at end of line\nExecution of /workspace/main.pl aborted due to compilation errors.\n",
        "",
        "syntax error",
        Some(1),
    ),
    (
        "php",
        "Warning: file_get_contents(x): Failed to open stream: No such file or directory in /workspace/main.php on line 4\n",
        "Warning",
        "file_get_contents(x): Failed to open stream: No such file or directory",
        Some(4),
    ),
    (
        "bash",
        "  % Total    % Received\n\r  0     0    0     0    0     0      0      0 --:--:-- --:--:-- --:--:--     0curl: (6) Could not resolve host: site.test\n",
        "",
        "curl: (6) Could not resolve host: site.test",
        None,
    ),
    (
        "python",
        "Traceback (most recent call last):\n  File \"/workspace/main.py\", line 7, in <module>\n    f()\n  File \"/workspace/main.py\", line 3, in f\n    1/0\n    ~^~\nZeroDivisionError: division by zero\n",
        "ZeroDivisionError",
        "division by zero",
        Some(3),
    ),
    (
        "python",
        "  File \"/workspace/main.py\", line 2\n    if x\n        ^\nSyntaxError: expected ':'\n",
        "SyntaxError",
        "expected ':'",
        Some(2),
    ),
    (
        "javascript",
        "/workspace/main.js:3\nfoo();\n^\n\nReferenceError: foo is not defined\n    at Object.<anonymous> (/workspace/main.js:3:1)\n    at Module._compile (node:internal/modules/cjs/loader:1554:14)\n\nNode.js v18\n",
        "ReferenceError",
        "foo is not defined",
        Some(3),
    ),
    (
        "ruby",
        "/workspace/main.rb:2:in `foo': undefined local variable or method `x' for main:Object (NameError)\n\tfrom /workspace/main.rb:5:in `<main>'\n",
        "NameError",
        "undefined local variable or method `x' for main:Object",
        Some(2),
    ),
    (
        "php",
        "PHP Fatal error:  Uncaught TypeError: f(): Argument #1 must be of type int, string given in /workspace/main.php:4\nStack trace:\n#0 {main}\n  thrown in /workspace/main.php on line 4\n",
        "TypeError",
        "f(): Argument #1 must be of type int, string given",
        Some(4),
    ),
    (
        "java",
        "Exception in thread \"main\" java.lang.ArrayIndexOutOfBoundsException: Index 5 out of bounds for length 3\n\tat Main.f(Main.java:4)\n\tat Main.main(Main.java:9)\n",
        "java.lang.ArrayIndexOutOfBoundsException",
        "Index 5 out of bounds for length 3",
        Some(4),
    ),
    (
        "go",
        "panic: runtime error: index out of range [5] with length 3\n\ngoroutine 1 [running]:\nmain.main()\n\t/workspace/main.go:7 +0x1d\nexit status 2\n",
        "panic",
        "runtime error: index out of range [5] with length 3",
        Some(7),
    ),
    (
        "rust",
        "\nthread 'main' panicked at /workspace/main.rs:3:5:\nattempt to divide by zero\nnote: run with `RUST_BACKTRACE=1`\n",
        "panicked",
        "attempt to divide by zero",
        Some(3),
    ),
    (
        "cpp",
        "terminate called after throwing an instance of 'std::out_of_range'\n  what():  vector::_M_range_check\n",
        "std::out_of_range",
        "vector::_M_range_check",
        None,
    ),
    (
        "bash",
        "/workspace/main.sh: line 2: foo: command not found\n",
        "",
        "foo: command not found",
        Some(2),
    ),
    (
        "perl",
        "Illegal division by zero at /workspace/main.pl line 3.\n",
        "",
        "Illegal division by zero",
        Some(3),
    ),
    (
        "lua",
        "lua: /workspace/main.lua:2: attempt to call a nil value (global 'foo')\nstack traceback:\n\t[C]: in ?\n",
        "",
        "attempt to call a nil value (global 'foo')",
        Some(2),
    ),
    (
        "javascript",
        "node:fs:573\n  return binding.open(\n                 ^\n\nError: ENOENT: no such file or directory, open '/nope'\n    at Object.openSync (node:fs:573:18)\n    at Object.<anonymous> (/workspace/main.js:1:15)\n",
        "Error",
        "ENOENT: no such file or directory, open '/nope'",
        Some(1),
    ),
    (
        "typescript",
        "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'lodash' imported from /tmp/build/main.mjs\n    at packageResolve (node:internal/modules/esm/resolve:873:9)\n",
        "Error",
        "Cannot find package 'lodash' imported from /tmp/build/main.mjs",
        None,
    ),
    (
        "ruby",
        "<internal:/usr/lib/ruby/vendor_ruby/rubygems/core_ext/kernel_require.rb>:85:in `require': cannot load such file -- nokogiri (LoadError)\n\tfrom /workspace/main.rb:3:in `<main>'\n",
        "LoadError",
        "cannot load such file -- nokogiri",
        Some(3),
    ),
    (
        "php",
        "Fatal error: Uncaught Error: Call to a member function y() on null in /workspace/main.php:2\nStack trace:\n#0 {main}\n  thrown in /workspace/main.php on line 2\n",
        "Error",
        "Call to a member function y() on null",
        Some(2),
    ),
    (
        "rust",
        "\nthread 'main' (16) has overflowed its stack\nfatal runtime error: stack overflow, aborting\n",
        "",
        "has overflowed its stack",
        None,
    ),
    (
        "bash",
        "/workspace/main.sh: line 1: syntax error near unexpected token `then'\n/workspace/main.sh: line 1: `if then'\n",
        "",
        "syntax error near unexpected token `then'",
        Some(1),
    ),
    (
        "bash",
        "touch: cannot touch '/etc/x': Read-only file system\n",
        "",
        "touch: cannot touch '/etc/x': Read-only file system",
        None,
    ),
    (
        "perl",
        "Can't locate Nope/Mod.pm in @INC (you may need to install the Nope::Mod module) (@INC contains: /etc/perl) at /workspace/main.pl line 1.\nBEGIN failed--compilation aborted at /workspace/main.pl line 1.\n",
        "",
        "Can't locate Nope/Mod.pm in @INC (you may need to install the Nope::Mod module) (@INC contains: /etc/perl)",
        Some(1),
    ),
    (
        "bash",
        "  0     0    0     0    0     0      0      0 --:--:-- --:--:-- --:--:--     0\rcurl: (6) Could not resolve host: example.org\n",
        "",
        "curl: (6) Could not resolve host: example.org",
        None,
    ),
    (
        "r",
        "Error in library(nope) : there is no package called ‘nope’\nExecution halted\n",
        "",
        "there is no package called ‘nope’",
        None,
    ),
];

#[test]
fn every_pattern_is_one() {
    assert_eq!(COMPILER_FORMATS.len(), COMPILERS.len());
    for (index, format) in FORMATS.iter().enumerate() {
        let (error, place) = compiled(index);
        assert!(error.is_some(), "{}", format.error);
        assert_eq!(
            place.is_some(),
            !format.place.is_empty(),
            "{}",
            format.place
        );
    }
}

#[test]
fn each_language_in_its_own_words() {
    for (language, text, kind, message, line) in WORDS {
        let claim = program(language, text).unwrap_or_else(|| panic!("{language}"));
        assert_eq!(
            (claim.kind.as_str(), claim.message.as_str(), claim.line),
            (*kind, *message, *line),
            "{language}"
        );
    }
}

#[test]
fn each_compiler_in_its_own_words() {
    for (text, message, line) in [
        (
            "/workspace/main.c: In function 'main':\n/workspace/main.c:3:5: error: 'x' undeclared (first use in this function)\n",
            "'x' undeclared (first use in this function)",
            3,
        ),
        (
            "error[E0425]: cannot find value `x` in this scope\n --> /workspace/main.rs:2:20\n  |\n",
            "cannot find value `x` in this scope",
            2,
        ),
        (
            "# command-line-arguments\n./main.go:4:2: undefined: x\n",
            "undefined: x",
            4,
        ),
        (
            "# command-line-arguments\n./main.go:3:14: total declared but not used\n./main.go:4:14: undefined: totl\n",
            "undefined: totl",
            4,
        ),
        (
            "✘ [ERROR] Unexpected \"=\"\n\n    main.ts:1:9:\n      1 │ const x: = ;\n        ╵          ^\n\n",
            "Unexpected \"=\"",
            1,
        ),
        (
            "/workspace/Main.java:3: error: cannot find symbol\n",
            "cannot find symbol",
            3,
        ),
        (
            "main.ts(3,5): error TS2304: Cannot find name 'x'.\n",
            "Cannot find name 'x'.",
            3,
        ),
    ] {
        let claim = compiler(text).unwrap_or_else(|| panic!("{text}"));
        assert_eq!((claim.message.as_str(), claim.line), (message, Some(line)));
    }
    let linker = "/usr/bin/ld: /tmp/ccX.o: in function `main':\nmain.c:(.text+0x5): undefined reference to `f'\ncollect2: error: ld returned 1 exit status\n";
    let claim = compiler(linker).unwrap();
    assert_eq!(
        (claim.message.as_str(), claim.line),
        ("undefined reference to `f'", None)
    );
    assert_eq!(compiler("nothing of the kind"), None);
}
