//! Every language, and manifests of the caller's own.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::harness::{Ended, belljar, directory, json, run_with, text};
use super::own_runtimes::with_manifest;

struct Language {
    name: &'static str,
    example: &'static str,
    /// A line that the example prints.
    says: &'static str,
    /// Prints its arguments joined by `|`, then its stdin in brackets, and exits with 7.
    program: &'static str,
    /// Dies of its language's own idea of an error, after it has printed `before`.
    broken: &'static str,
    /// What the language says then.
    complaint: &'static str,
    /// For compiled languages: what does not compile, and a word of the compiler's.
    garbled: Option<(&'static str, &'static str)>,
}

/// By way of the binary: the example, arguments with stdin and exit code, an error at run time, one at compile time.
fn check(language: &Language) {
    let name = language.name;
    let example = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples")
        .join(language.example);
    let ended = run_with(&[&text(example)], b"");
    assert_eq!(ended.code, 0, "{name}: {ended:?}");
    assert!(ended.stdout.contains(language.says), "{name}: {ended:?}");

    // As some editors leave it.
    let program = format!("\u{feff}{}", language.program);
    let ended = run_with(
        &["-l", name, "-c", &program, "--", "one two", "", "drei"],
        b"line\n",
    );
    assert_eq!(
        (ended.code, ended.stdout.trim_end()),
        (7, "one two||drei[line]"),
        "{name}: {ended:?}"
    );

    let result = json(&["-l", name, "-c", language.broken]);
    assert_eq!(result.status(), "failed", "{name}: {:#}", result.value);
    assert_eq!(result.stdout(), "before", "{name}");
    assert!(
        result.text("stderr").contains(language.complaint),
        "{name}: {:#}",
        result.value
    );
    assert_ne!(result.code, 0, "{name}");

    let Some((garbled, word)) = language.garbled else {
        return assert!(result.get("compile").is_null(), "{name}");
    };
    assert_eq!(result.text("compile.status"), "ok", "{name}");
    let result = json(&["-l", name, "-c", garbled]);
    assert_eq!(
        result.status(),
        "compile_failed",
        "{name}: {:#}",
        result.value
    );
    let words = format!(
        "{}{}",
        result.text("compile.stdout"),
        result.text("compile.stderr")
    );
    assert!(words.contains(word), "{name}: {words}");
    assert_eq!(result.text("stdout"), "", "{name}");
    assert_eq!(result.get("success"), false, "{name}");
    assert!((1..125).contains(&result.code), "{name}: {}", result.code);
    let ended = run_with(&["-l", name, "-c", garbled], b"");
    assert!(
        ended.stderr.contains(word) && ended.stdout.is_empty(),
        "{name}: the compiler is heard: {ended:?}"
    );
}

macro_rules! languages {
    ($($test:ident: $language:expr;)*) => { $(#[test] fn $test() { check(&$language); })* };
}

languages! {
    python: Language {
        name: "python", example: "primes.py", says: "25 primes up to 100",
        program: "import sys; print('|'.join(sys.argv[1:]) + '[' + sys.stdin.readline().strip() + ']'); sys.exit(7)",
        broken: "print('before', flush=True); {}['x']", complaint: "KeyError", garbled: None,
    };
    javascript: Language {
        name: "javascript", example: "collatz.js", says: "terms to reach 1",
        program: "console.log(process.argv.slice(2).join('|') + '[' + require('fs').readFileSync(0, 'utf8').trim() + ']'); process.exitCode = 7",
        broken: "console.log('before'); null.x", complaint: "TypeError", garbled: None,
    };
    typescript: Language {
        name: "typescript", example: "life.ts", says: "#",
        program: "import { readFileSync } from 'fs';\nconst line: string = readFileSync(0, 'utf8').trim();\nconsole.log(process.argv.slice(2).join('|') + `[${line}]`);\nprocess.exitCode = 7 as number;",
        broken: "console.log('before'); const x: any = null; x.y", complaint: "TypeError",
        garbled: Some(("const x: = ;", "main.ts:1")),
    };
    bash: Language {
        name: "bash", example: "fizzbuzz.sh", says: "FizzBuzz",
        program: "IFS='|'; read -r line; echo \"$*[$line]\"; exit 7",
        broken: "echo before; set -u; echo $nothing", complaint: "unbound variable", garbled: None,
    };
    ruby: Language {
        name: "ruby", example: "words.rb", says: "different words",
        program: "puts ARGV.join('|') + '[' + $stdin.gets.strip + ']'; exit 7",
        broken: "puts 'before'; $stdout.flush; nil.upcase", complaint: "NoMethodError", garbled: None,
    };
    go: Language {
        name: "go", example: "sieve.go", says: "2",
        program: "package main\nimport (\"bufio\"; \"fmt\"; \"os\"; \"strings\")\nfunc main() {\n\tline, _ := bufio.NewReader(os.Stdin).ReadString('\\n')\n\tfmt.Println(strings.Join(os.Args[1:], \"|\") + \"[\" + strings.TrimSpace(line) + \"]\")\n\tos.Exit(7)\n}",
        broken: "package main\nimport \"fmt\"\nfunc main() { fmt.Println(\"before\"); var m map[string]int; m[\"x\"] = 1 }",
        complaint: "nil map", garbled: Some(("package main\nfunc main() { undefined_thing() }", "undefined")),
    };
    rust: Language {
        name: "rust", example: "queens.rs", says: "8 queens can be placed in 92 ways",
        program: "fn main() { let a: Vec<String> = std::env::args().skip(1).collect(); let mut l = String::new(); std::io::stdin().read_line(&mut l).unwrap(); println!(\"{}[{}]\", a.join(\"|\"), l.trim()); std::process::exit(7) }",
        broken: "fn main() { println!(\"before\"); let v: Vec<u8> = Vec::new(); println!(\"{}\", v[std::env::args().count()]); }",
        complaint: "index out of bounds", garbled: Some(("fn main() { let x: u8 = \"text\"; }", "mismatched types")),
    };
    c: Language {
        name: "c", example: "mandelbrot.c", says: "####",
        program: "#include <stdio.h>\n#include <string.h>\nint main(int n, char **a) { char l[99]; for (int i = 1; i < n; i++) printf(\"%s%s\", i > 1 ? \"|\" : \"\", a[i]); if (!fgets(l, 99, stdin)) return 1; l[strcspn(l, \"\\n\")] = 0; printf(\"[%s]\\n\", l); return 7; }",
        broken: "#include <assert.h>\n#include <stdio.h>\nint main(void) { puts(\"before\"); fflush(stdout); assert(1 == 2); }",
        complaint: "Assertion", garbled: Some(("int main(void) { return x; }", "undeclared")),
    };
    cpp: Language {
        name: "cpp", example: "factorial.cpp", says: "265252859812191058636308480000000",
        program: "#include <iostream>\n#include <string>\nint main(int n, char **a) { for (int i = 1; i < n; i++) std::cout << (i > 1 ? \"|\" : \"\") << a[i]; std::string l; std::getline(std::cin, l); std::cout << '[' << l << \"]\\n\"; return 7; }",
        broken: "#include <iostream>\n#include <vector>\nint main() { std::cout << \"before\" << std::endl; std::vector<int> v; return v.at(3); }",
        complaint: "out_of_range", garbled: Some(("int main() { return undefined_thing; }", "not declared")),
    };
    java: Language {
        name: "java", example: "Fibonacci.java", says: "fibonacci(100) = 354224848179261915075",
        program: "import java.util.Scanner;\npublic class Any { public static void main(String[] a) { System.out.println(String.join(\"|\", a) + \"[\" + new Scanner(System.in).nextLine() + \"]\"); System.exit(7); } }",
        broken: "class Main { public static void main(String[] a) { System.out.println(\"before\"); Object o = null; o.hashCode(); } }",
        complaint: "NullPointerException",
        garbled: Some(("class Main { public static void main(String[] a) { int x = \"text\"; } }", "incompatible types")),
    };
    php: Language {
        name: "php", example: "calendar.php", says: "October 2025",
        program: "<?php echo implode('|', array_slice($argv, 1)) . '[' . trim(fgets(STDIN)) . \"]\\n\"; exit(7);",
        broken: "<?php echo \"before\\n\"; throw new RuntimeException('thrown');", complaint: "RuntimeException", garbled: None,
    };
    perl: Language {
        name: "perl", example: "anagrams.pl", says: "groups among",
        program: "my $l = <STDIN>; chomp $l; print join('|', @ARGV) . \"[$l]\\n\"; exit 7",
        broken: "$| = 1; print \"before\\n\"; die 'dead'", complaint: "dead", garbled: None,
    };
    lua: Language {
        name: "lua", example: "hanoi.lua", says: "7 moves for 3 discs",
        program: "print(table.concat(arg, '|') .. '[' .. io.read() .. ']'); os.exit(7)",
        broken: "print('before'); io.stdout:flush(); local x = nil; x.y()", complaint: "attempt to index", garbled: None,
    };
    r: Language {
        name: "r", example: "regression.R", says: "from 50 points",
        program: "cat(paste(commandArgs(trailingOnly = TRUE), collapse = '|'), '[', readLines(file('stdin'), n = 1), ']\\n', sep = '')\nquit(status = 7)",
        broken: "cat('before\\n'); stop('went wrong')", complaint: "went wrong", garbled: None,
    };
}

fn list(args: &[&str]) -> Ended {
    belljar()
        .arg("runtimes")
        .args(args)
        .output()
        .unwrap()
        .into()
}

const NAMES: [&str; 14] = [
    "bash",
    "c",
    "cpp",
    "go",
    "java",
    "javascript",
    "lua",
    "perl",
    "php",
    "python",
    "r",
    "ruby",
    "rust",
    "typescript",
];

#[test]
fn the_list_has_every_language_with_its_version() {
    let ended = list(&[]);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{ended:?}");
    let names: Vec<_> = ended
        .stdout
        .lines()
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    assert_eq!(names, NAMES);
    let missing: Vec<_> = ended
        .stdout
        .lines()
        .filter(|line| line.contains(" missing "))
        .collect();
    assert!(missing.is_empty(), "run scripts/setup: {missing:?}");
    let rows: Value = serde_json::from_str(&list(&["--json"]).stdout).unwrap();
    for row in rows.as_array().unwrap() {
        assert_eq!(row["ok"], true, "{row:#}");
        assert!(
            row["version"]
                .as_str()
                .unwrap()
                .contains(|c: char| c.is_ascii_digit()),
            "{row:#}"
        );
        assert!(row["program"].as_str().unwrap().starts_with('/'), "{row:#}");
        assert_eq!(row["origin"], "built-in", "{row:#}");
    }
}

#[test]
fn what_is_missing_is_listed_with_how_to_get_it() {
    let home = directory(&[]);
    // A host without anything on PATH still has what is named by its full path.
    let output = belljar()
        .args(["runtimes", "--json"])
        .env("PATH", home.path())
        .env("HOME", home.path())
        .env("XDG_CACHE_HOME", home.path())
        .output()
        .unwrap();
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    let lua = rows
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["name"] == "lua")
        .unwrap();
    assert_eq!(lua["ok"], false, "{lua:#}");
    assert_eq!(lua["install"], "apt-get install lua5.4");
    let ended: Ended = belljar()
        .args(["run", "-l", "lua", "-c", "print(1)"])
        .env("PATH", home.path())
        .env("HOME", home.path())
        .output()
        .unwrap()
        .into();
    assert_eq!((ended.code, ended.stdout.as_str()), (125, ""), "{ended:?}");
    assert!(
        ended.stderr.starts_with("belljar: ") && ended.stderr.contains("apt-get install lua5.4"),
        "{ended:?}"
    );
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
}

#[test]
fn a_toolchain_in_a_home_shows_nothing_else_of_it() {
    let home = directory(&[
        ("secret.txt", "secret"),
        (".ssh/id_rsa", "secret"),
        (".tool/share/neighbour", "fine"),
    ]);
    let tool = home.path().join(".tool/bin/greet");
    fs::create_dir_all(tool.parent().unwrap()).unwrap();
    fs::copy("/usr/bin/find", &tool).unwrap();
    let manifest = format!(
        r#"
name = "greet"
main = "main.greet"
install = "write it"
[[toolchain]]
programs = ["~/.tool/bin/greet"]
probe = ["/bin/sh", "-c", "echo version=Greet 1; echo mount=$HOME/.tool"]
[toolchain.run]
argv = ["{{program}}", "{0}", "-mindepth", "1"]
"#,
        home.path().display()
    );
    let runtimes = directory(&[("greet.toml", &manifest)]);
    let ended: Ended = belljar()
        .args(["run", "-l", "greet", "-c", "x"])
        .env("HOME", home.path())
        .env("BELLJAR_RUNTIMES", runtimes.path())
        .output()
        .unwrap()
        .into();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stdout.contains(".tool/share/neighbour"), "{ended:?}");
    assert!(
        !ended.stdout.contains("secret") && !ended.stdout.contains(".ssh"),
        "{ended:?}"
    );
}

/// It was an error of the caller's, with a path that the caller has never heard of, and no result.
#[test]
fn what_is_no_program_does_not_compile() {
    for (language, code, word) in [
        (
            "go",
            "// A library.\npackage foo\nfunc F() {}",
            "./main.go:2:1: this is no program: a program has \"package main\" and a function main",
        ),
        ("go", "package main_test\nfunc F() {}", "this is no program"),
        (
            "rust",
            "#![crate_type = \"lib\"]\npub fn f() {}",
            "`main` function not found",
        ),
    ] {
        let result = json(&["-l", language, "-c", code]);
        let whole = &result.value;
        assert_eq!(result.status(), "compile_failed", "{whole:#}");
        assert_eq!(result.code, 1, "{whole:#}");
        assert!(result.text("compile.stderr").contains(word), "{whole:#}");
        assert_eq!(result.text("error.category"), "compile", "{whole:#}");
    }
    // A compiler that is content with making nothing, or no program.
    for (makes, why) in [
        ("true", "No such file or directory"),
        ("echo text > {out}/program", "Permission denied"),
        (
            "touch {out}/program; chmod +x {out}/program",
            "Exec format error",
        ),
    ] {
        let manifest = format!(
            "name = 'toy'\nmain = 'main.toy'\ninstall = 'none'\n[[toolchain]]\nprograms = ['/bin/sh']\n\
             probe = ['/bin/sh', '-c', 'echo version=1']\n[toolchain.compile]\nargv = ['/bin/sh', '-c', '{makes}']\n\
             [toolchain.run]\nargv = ['{{out}}/program']"
        );
        let args = ["run", "-l", "toy", "-c", "x", "--json"];
        let ended = with_manifest("toy.toml", &manifest, &args);
        let result: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(result["status"], "compile_failed", "{result:#}");
        let said = format!(
            "the compiler made no program that can be started, as of a library or of code without an entry point ({why})\n"
        );
        assert_eq!(result["compile"]["stderr"], said, "{result:#}");
        assert_eq!(result["compile"]["status"], "failed", "{result:#}");
        let message = &result["error"]["message"];
        assert_eq!(message, "the compiler made no program that can be started");
        assert_eq!((ended.code, result["exit_code"].as_i64()), (1, Some(1)));
    }
}

#[test]
fn compiled_programs_are_not_among_the_files_that_came_out() {
    let result = json(&["-l", "c", "-c", "int main(void) { return 0; }"]);
    assert_eq!(result.get("files"), &serde_json::json!([]));
}

#[test]
fn the_compiler_runs_in_the_jar_too() {
    let ended = run_with(
        &[
            "-l",
            "c",
            "-c",
            "#include \"/etc/shadow\"\nint main(void) { return 0; }",
        ],
        b"",
    );
    assert_ne!(ended.code, 0);
    assert!(
        ended.stderr.contains("/etc/shadow") && ended.stderr.contains("No such file"),
        "{ended:?}"
    );
    let ended = run_with(
        &[
            "-l",
            "c",
            "-c",
            "#include \"/dev/zero\"\nint main(void) { return 0; }",
        ],
        b"",
    );
    assert!(
        ![0, 125].contains(&ended.code),
        "an endless source ends: {ended:?}"
    );
}

/// What is given beside the main file, and what the program says then.
type Several = (&'static str, &'static [(&'static str, &'static str)]);

#[test]
fn a_program_may_have_several_sources() {
    const C: &str =
        "#include <stdio.h>\n#include \"util.h\"\nint main(void) { printf(\"%d\\n\", twice(21)); }";
    const GO: &str =
        "package main\n\nimport \"fmt\"\n\nfunc main() {\n\tfmt.Println(twice(21))\n}\n";
    const TWICE: &str = "#include \"util.h\"\nint twice(int x) { return 2 * x; }";
    const GO_TWICE: &str = "package main\n\nfunc twice(x int) int { return 2 * x }\n";
    let programs: [Several; 6] = [
        (
            "main.c",
            &[
                ("main.c", C),
                ("util.h", "int twice(int);"),
                ("my util.c", TWICE),
            ],
        ),
        // Programs of their own, and what is included already, are no parts.
        (
            "main.c",
            &[
                ("main.c", C),
                ("util.h", "#include \"util.c\""),
                ("util.c", "static int twice(int x) { return 2 * x; }"),
                ("other.c", "int main (void) { return 1; }"),
            ],
        ),
        (
            "main.c",
            &[
                ("main.c", C),
                ("util.h", "int twice(int);"),
                ("lib/util.h", "int twice(int);"),
                ("lib/util.c", TWICE),
            ],
        ),
        (
            "main.cpp",
            &[
                ("main.cpp", C),
                ("util.h", "int twice(int);"),
                ("util.cc", TWICE),
            ],
        ),
        (
            "main.go",
            &[
                ("main.go", GO),
                ("twice.go", GO_TWICE),
                ("other.go", "package other\n"),
                ("twice_test.go", GO_TWICE),
            ],
        ),
        (
            "main.go",
            &[
                ("main.go", GO),
                ("go.mod", "module example.org/m\n\ngo 1.18\n"),
                ("twice.go", GO_TWICE),
                (
                    "tool.go",
                    "package main\n\nfunc main() { panic(\"another\") }\n",
                ),
            ],
        ),
    ];
    for (main, files) in programs {
        let place = directory(files);
        let mut args = vec![text(place.path().join(main))];
        for (name, _) in files.iter().filter(|(name, _)| *name != main) {
            args.push("--file".into());
            args.push(format!("{name}={}", text(place.path().join(name))));
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let ended = run_with(&args, b"");
        assert_eq!(
            (ended.code, ended.stdout.as_str()),
            (0, "42\n"),
            "{args:?}: {ended:?}"
        );
    }
}

#[test]
fn typescript_knows_where_it_is() {
    let code = "import { dirname } from 'path';
import { fileURLToPath, pathToFileURL } from 'url';
const here: string = dirname(fileURLToPath(import.meta.url));
const is_main = import.meta.url === pathToFileURL(process.argv[1]).href;
console.log(here, __dirname, __filename, is_main);";
    let ended = run_with(&["-l", "ts", "-c", code], b"");
    assert_eq!(
        ended.stdout, "/workspace /workspace /workspace/main.ts true\n",
        "{ended:?}"
    );
    // Names of the code's own.
    let code = "const __dirname: string = 'mine', __filename: string = 'too'; console.log(__dirname, __filename);";
    let ended = run_with(&["-l", "ts", "-c", code], b"");
    assert_eq!(ended.stdout, "mine too\n", "{ended:?}");
}
