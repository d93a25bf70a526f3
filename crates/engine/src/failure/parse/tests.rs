//! What programs and compilers really print.

mod words;

use super::*;
use crate::failure::place::usual;
use words::WORDS;

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
        let claim =
            program(language, usual(language), text).unwrap_or_else(|| panic!("{language}"));
        assert_eq!(
            (claim.kind.as_str(), claim.message.as_str(), claim.line),
            (*kind, *message, *line),
            "{language}"
        );
    }
}

/// Language, what it printed, the line of the code's own file, and the place that is in another.
const ELSEWHERE: &[(&str, &str, Option<u32>, Option<&str>)] = &[
    (
        "javascript",
        "/workspace/h.js:6\n  null.x; };\n       ^\n\nTypeError: Cannot read properties of null (reading 'x')\n    at module.exports (/workspace/h.js:6:8)\n    at Object.<anonymous> (/workspace/main.js:3:1)\n    at Module._compile (node:internal/modules/cjs/loader:1521:14)\n",
        Some(3),
        Some("h.js:6"),
    ),
    (
        "javascript",
        "/workspace/h.js:3\nlet = = 3\n      ^\n\nSyntaxError: Unexpected token '='\n    at wrapSafe (node:internal/modules/cjs/loader:1464:18)\n    at Object.<anonymous> (/workspace/main.js:1:11)\n",
        Some(1),
        Some("h.js:3"),
    ),
    (
        "javascript",
        "file:///workspace/h.mjs:3\nlet = = 3\n^^^\n\nSyntaxError: Unexpected strict mode reserved word\n    at compileSourceTextModule (node:internal/modules/esm/utils:346:16)\n",
        None,
        Some("h.mjs:3"),
    ),
    (
        "javascript",
        "file:///workspace/h.mjs:3\nexport default () => null.x\n                          ^\n\nTypeError: Cannot read properties of null (reading 'x')\n    at default (file:///workspace/h.mjs:3:27)\n    at file:///workspace/main.js:3:1\n",
        Some(3),
        Some("h.mjs:3"),
    ),
    (
        "typescript",
        "/workspace/h.ts:4\n return (null as any).x }\n                      ^\n\n\nTypeError: Cannot read properties of null (reading 'x')\n    at h (/workspace/h.ts:4:23)\n    at <anonymous> (/workspace/main.ts:3:1)\n",
        Some(3),
        Some("h.ts:4"),
    ),
    (
        "ruby",
        "/workspace/h.rb:4:in `h': undefined method `foo' for nil:NilClass (NoMethodError)\n\n  nil.foo\n     ^^^^\n\tfrom /workspace/main.rb:3:in `<main>'\n",
        Some(3),
        Some("h.rb:4"),
    ),
    (
        "php",
        "Fatal error: Uncaught Error: Call to undefined function null_x() in /workspace/h.php:4\nStack trace:\n#0 /workspace/main.php(5): h()\n#1 {main}\n  thrown in /workspace/h.php on line 4\n",
        Some(5),
        Some("h.php:4"),
    ),
    (
        "php",
        "Parse error: syntax error, unexpected token \"{\", expecting variable in /workspace/h.php on line 3\n",
        None,
        Some("h.php:3"),
    ),
    (
        "java",
        "Exception in thread \"main\" java.lang.RuntimeException: no\n\tat H.f(H.java:4)\n\tat Main.main(Main.java:5)\n",
        Some(5),
        Some("H.java:4"),
    ),
    (
        "go",
        "panic: no\n\ngoroutine 1 [running]:\nx/h.F(...)\n\t/workspace/h/h.go:4\nmain.main()\n\t/workspace/main.go:5 +0x27\n",
        Some(5),
        Some("h/h.go:4"),
    ),
    (
        "rust",
        "\nthread 'main' (16) panicked at /workspace/h.rs:4:3:\nno\nstack backtrace:\n   0: __rustc::rust_begin_unwind\n             at /rustc/59807616e1fa2540724bfbac14d7976d7e4a3860/library/std/src/panicking.rs:689:5\n   2: main::main\n",
        None,
        Some("h.rs:4"),
    ),
    (
        "c",
        "program: /workspace/h.h:4: f: Assertion `1==2' failed.\n",
        None,
        Some("h.h:4"),
    ),
    (
        "cpp",
        "program: /workspace/main.cpp:4: int n::f(): Assertion `1==2' failed.\n",
        Some(4),
        None,
    ),
    (
        "bash",
        "h.sh: line 4: nosuch: command not found\n",
        None,
        Some("h.sh:4"),
    ),
    (
        "perl",
        "Can't locate object method \"foo\" via package \"3\" (perhaps you forgot to load \"3\"?) at h.pm line 4.\n",
        None,
        Some("h.pm:4"),
    ),
    (
        "perl",
        "syntax error at h.pm line 4, near \"= ;\"\nCompilation failed in require at /workspace/main.pl line 2.\nBEGIN failed--compilation aborted at /workspace/main.pl line 2.\n",
        Some(2),
        Some("h.pm:4"),
    ),
    (
        "lua",
        "/usr/bin/lua5.4: ./h.lua:4: attempt to index a nil value (local 'x')\nstack traceback:\n\t./h.lua:4: in function 'h'\n\t/workspace/main.lua:3: in main chunk\n\t[C]: in ?\n",
        Some(3),
        Some("h.lua:4"),
    ),
    (
        "lua",
        "/usr/bin/lua5.4: error loading module 'h' from file './h.lua':\n\t./h.lua:4: <name> or '...' expected near 'local'\nstack traceback:\n\t[C]: in ?\n\t[C]: in function 'require'\n\t/workspace/main.lua:1: in main chunk\n\t[C]: in ?\n",
        Some(1),
        Some("h.lua:4"),
    ),
    (
        "python",
        "Traceback (most recent call last):\n  File \"/workspace/main.py\", line 3, in <module>\n    h.f()\n  File \"/workspace/h.py\", line 5, in f\n    1/0\n    ~^~\nZeroDivisionError: division by zero\n",
        Some(3),
        Some("h.py:5"),
    ),
    (
        "python",
        "Traceback (most recent call last):\n  File \"/workspace/main.py\", line 3, in <module>\n    json.loads('')\n  File \"/usr/lib/python3.11/json/__init__.py\", line 346, in loads\n    return _default_decoder.decode(s)\njson.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)\n",
        Some(3),
        None,
    ),
    // A command has no lines that could be shown.
    (
        "command",
        "Traceback (most recent call last):\n  File \"/workspace/s.py\", line 3, in <module>\n    1/0\nZeroDivisionError: division by zero\n",
        None,
        Some("s.py:3"),
    ),
];

#[test]
fn errors_in_other_files() {
    for (language, text, line, elsewhere) in ELSEWHERE {
        let claim = program(language, usual(language), text).unwrap_or_else(|| panic!("{text}"));
        let told = (claim.line, claim.elsewhere.as_deref());
        assert_eq!(told, (*line, *elsewhere), "{text}");
    }
    for (main, text, line, elsewhere) in [
        (
            "main.c",
            "In file included from /workspace/main.c:2:\n/workspace/h.h: In function ‘f’:\n/workspace/h.h:4:10: error: ‘x’ undeclared (first use in this function)\n",
            Some(2),
            Some("h.h:4"),
        ),
        (
            "main.cpp",
            "In file included from /usr/include/c++/12/algorithm:61,\n                 from /workspace/main.cpp:2:\n/usr/include/c++/12/bits/stl_algo.h:4820:18:   required from ‘constexpr void std::sort(_RAIter, _RAIter)’\n/workspace/main.cpp:5:10:   required from here\n/usr/include/c++/12/bits/stl_algo.h:1938:50: error: no match for ‘operator-’\n",
            Some(5),
            None,
        ),
        (
            "main.rs",
            "error[E0425]: cannot find value `x` in this scope\n --> /workspace/h.rs:4:3\n  |\n",
            None,
            Some("h.rs:4"),
        ),
        (
            "Main.java",
            "/workspace/H.java:4: error: not a statement\n",
            None,
            Some("H.java:4"),
        ),
        (
            "main.go",
            "# x/h\nh/h.go:4:2: undefined: x\n",
            None,
            Some("h/h.go:4"),
        ),
        (
            "main.ts",
            "✘ [ERROR] Unexpected \"=\"\n\n    h.ts:3:28:\n      3 │ export function h() { let = = 3 }\n",
            None,
            Some("h.ts:3"),
        ),
    ] {
        let claim = compiler(main, text).unwrap_or_else(|| panic!("{text}"));
        let told = (claim.line, claim.elsewhere.as_deref());
        assert_eq!(told, (line, elsewhere), "{text}");
    }
}

#[test]
fn each_compiler_in_its_own_words() {
    for (main, text, message, line) in [
        (
            "main.c",
            "/workspace/main.c: In function 'main':\n/workspace/main.c:3:5: error: 'x' undeclared (first use in this function)\n",
            "'x' undeclared (first use in this function)",
            3,
        ),
        (
            "main.rs",
            "error[E0425]: cannot find value `x` in this scope\n --> /workspace/main.rs:2:20\n  |\n",
            "cannot find value `x` in this scope",
            2,
        ),
        (
            "main.go",
            "# command-line-arguments\n./main.go:4:2: undefined: x\n",
            "undefined: x",
            4,
        ),
        (
            "main.go",
            "# command-line-arguments\n./main.go:3:14: total declared but not used\n./main.go:4:14: undefined: totl\n",
            "undefined: totl",
            4,
        ),
        (
            "main.ts",
            "✘ [ERROR] Unexpected \"=\"\n\n    main.ts:1:9:\n      1 │ const x: = ;\n        ╵          ^\n\n",
            "Unexpected \"=\"",
            1,
        ),
        (
            "Main.java",
            "/workspace/Main.java:3: error: cannot find symbol\n",
            "cannot find symbol",
            3,
        ),
        (
            "main.ts",
            "main.ts(3,5): error TS2304: Cannot find name 'x'.\n",
            "Cannot find name 'x'.",
            3,
        ),
    ] {
        let claim = compiler(main, text).unwrap_or_else(|| panic!("{text}"));
        assert_eq!((claim.message.as_str(), claim.line), (message, Some(line)));
    }
    let linker = "/usr/bin/ld: /tmp/ccX.o: in function `main':\nmain.c:(.text+0x5): undefined reference to `f'\ncollect2: error: ld returned 1 exit status\n";
    let claim = compiler("main.c", linker).unwrap();
    assert_eq!(
        (claim.message.as_str(), claim.line),
        ("undefined reference to `f'", None)
    );
    assert_eq!(compiler("main.c", "nothing of the kind"), None);
}

#[test]
fn what_an_interpreter_tells_of_itself() {
    for (language, text, place) in [
        (
            "python",
            "Traceback (most recent call last):\n  File \"/workspace/own.py\", line 3, in <module>\n    h.f()\n  File \"/workspace/h.py\", line 5, in f\n    1/0\nZeroDivisionError: division by zero\n",
            Some("h.py:5"),
        ),
        (
            "python",
            "Traceback (most recent call last):\n  File \"main.py\", line 3, in <module>\n    f()\n  File \"main.py\", line 1, in f\n    json.loads('')\n  File \"/usr/lib/python3.11/json/__init__.py\", line 346, in loads\nValueError: x\n",
            None,
        ),
        (
            "javascript",
            "main.js:3\nh()\n^\n\nTypeError: no\n    at module.exports (/workspace/h.js:6:8)\n    at main.js:3:1\n  caused by Error: x\n      at /workspace/g.js:1:1\n",
            Some("h.js:6"),
        ),
        (
            "javascript",
            "TypeError: no\n    at f (main.js:1:8)\n    at main.js:3:1\n",
            None,
        ),
        ("bash", "", None),
    ] {
        assert_eq!(elsewhere(language, text).as_deref(), place, "{text}");
    }
}

#[test]
fn what_was_said_before_a_long_list_of_calls() {
    let calls = "\tat Main.f(Main.java:3)\n".repeat(4000);
    let java = format!("Exception in thread \"main\" java.lang.StackOverflowError\n{calls}");
    let claim = program("java", usual("java"), &java).unwrap();
    assert_eq!(claim.kind, "java.lang.StackOverflowError");
    assert_eq!(claim.line, Some(3));
    let threads = "goroutine 9 [sleep]:\nmain.f()\n\t/workspace/main.go:5 +0x2f\n\n".repeat(2000);
    let go = format!("fatal error: newosproc\n\n{threads}");
    let claim = program("go", usual("go"), &go).unwrap();
    assert_eq!((claim.message.as_str(), claim.line), ("newosproc", Some(5)));
}
