//! What has to be imported before a name is known: models and people forget that more often than they misspell.

/// Modules of Python that go by a shorter name.
const ALIASES: [(&str, &str); 5] = [
    ("np", "numpy"),
    ("pd", "pandas"),
    ("plt", "matplotlib.pyplot"),
    ("sns", "seaborn"),
    ("tf", "tensorflow"),
];
/// What is mostly imported from a module by its own name.
const PYTHON: [(&str, &str); 9] = [
    (
        "collections",
        "Counter OrderedDict defaultdict deque namedtuple",
    ),
    ("dataclasses", "dataclass field"),
    ("datetime", "date datetime timedelta timezone"),
    ("decimal", "Decimal"),
    ("enum", "Enum"),
    ("fractions", "Fraction"),
    ("functools", "lru_cache partial reduce wraps"),
    ("pathlib", "Path"),
    (
        "typing",
        "Any Callable Dict Iterable List Optional Set Tuple Union",
    ),
];
const NODE: &str = "assert child_process crypto dns events fs http https net os path readline stream url util vm worker_threads zlib";
/// Packages of Go by the last part of their path.
const GO: &str = "bufio bytes context container/heap container/list encoding/json errors fmt io log math math/rand net/http os regexp sort \
    strconv strings sync sync/atomic time unicode";
const JAVA: [(&str, &str); 6] = [
    (
        "java.util",
        "ArrayDeque ArrayList Arrays Collections Comparator Deque HashMap HashSet Iterator LinkedHashMap LinkedList List Map Objects \
         Optional PriorityQueue Queue Random Scanner Set Stack TreeMap TreeSet UUID",
    ),
    ("java.util.stream", "Collectors IntStream Stream"),
    (
        "java.util.function",
        "BiFunction Consumer Function Predicate Supplier",
    ),
    (
        "java.util.concurrent",
        "CompletableFuture ConcurrentHashMap ExecutorService Executors TimeUnit",
    ),
    (
        "java.io",
        "BufferedReader File FileReader FileWriter IOException InputStreamReader PrintWriter",
    ),
    ("java.nio.file", "Files Path Paths"),
];
const RUBY: [(&str, &str); 10] = [
    ("bigdecimal", "BigDecimal"),
    ("csv", "CSV"),
    ("date", "Date DateTime"),
    ("digest", "Digest"),
    ("json", "JSON"),
    ("ostruct", "OpenStruct"),
    ("pathname", "Pathname"),
    ("securerandom", "SecureRandom"),
    ("set", "Set SortedSet"),
    ("yaml", "YAML"),
];

fn has(words: &str, name: &str) -> bool {
    words.split_whitespace().any(|word| word == name)
}

fn home(table: &[(&'static str, &'static str)], name: &str) -> Option<&'static str> {
    let found = table.iter().find(|(_, names)| has(names, name));
    found.map(|(module, _)| *module)
}

/// The statement that the code lacks for this name. `modules` are those of Python.
pub fn statement(language: &str, modules: &str, name: &str, code: &str) -> Option<String> {
    let statement = match language {
        "python" => python(modules, name, code)?,
        "javascript" | "typescript" if has(NODE, name) => {
            // Code that imports is a module, which has no `require`.
            if language == "typescript" || code.lines().any(|line| line.starts_with("import ")) {
                format!("import {name} from \"{name}\"")
            } else {
                format!("const {name} = require(\"{name}\")")
            }
        }
        "go" => {
            let mut paths = GO.split_whitespace();
            let path = paths.find(|path| path.rsplit('/').next() == Some(name))?;
            format!("import \"{path}\"")
        }
        "java" => format!("import {}.{name};", home(&JAVA, name)?),
        "ruby" => format!("require \"{}\"", home(&RUBY, name)?),
        _ => return None,
    };
    Some(statement)
}

fn python(modules: &str, name: &str, code: &str) -> Option<String> {
    if let Some((_, module)) = ALIASES.iter().find(|(alias, _)| *alias == name) {
        return Some(format!("import {module} as {name}"));
    }
    // `datetime` is a module and a class in it: with another name of the module behind it, it is the module.
    let own = PYTHON.iter().find(|(module, _)| *module == name);
    let is_module = own.is_some_and(|(module, names)| {
        let mut names = names.split_whitespace();
        names.any(|one| code.contains(&format!("{module}.{one}")))
    });
    match home(&PYTHON, name) {
        Some(module) if !is_module => Some(format!("from {module} import {name}")),
        // Many modules are called what variables are called, too.
        _ if has(modules, name) && code.contains(&format!("{name}.")) => {
            Some(format!("import {name}"))
        }
        _ => None,
    }
}

/// The line that the compiler of Rust proposes to add for a name: `1 + use std::collections::HashMap;`
pub fn proposed_use<'a>(name: &str, output: &'a str) -> Option<&'a str> {
    output.lines().find_map(|line| {
        let (number, added) = line.trim().split_once(" + ")?;
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        let path = added.strip_prefix("use ")?.strip_suffix(';')?;
        (is_number && path.rsplit("::").next() == Some(name)).then_some(added)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULES: &str = "asyncio datetime math queue";

    #[test]
    fn each_language_has_its_own_statement() {
        for (language, name, code, missing) in [
            ("python", "math", "math.pi", "import math"),
            ("python", "pd", "pd.DataFrame()", "import pandas as pd"),
            (
                "python",
                "datetime",
                "datetime.now()",
                "from datetime import datetime",
            ),
            (
                "python",
                "datetime",
                "datetime.datetime.now()",
                "import datetime",
            ),
            ("python", "Path", "Path('.')", "from pathlib import Path"),
            ("javascript", "fs", "fs.x", "const fs = require(\"fs\")"),
            (
                "javascript",
                "fs",
                "import a from 'a'\nfs.x",
                "import fs from \"fs\"",
            ),
            ("typescript", "fs", "fs.x", "import fs from \"fs\""),
            ("go", "rand", "rand.Intn(2)", "import \"math/rand\""),
            ("java", "List", "List<A>", "import java.util.List;"),
            ("ruby", "JSON", "JSON.parse", "require \"json\""),
        ] {
            let found = statement(language, MODULES, name, code);
            assert_eq!(found.as_deref(), Some(missing), "{language} {name}");
        }
        for (language, name, code) in [
            ("python", "queue", "queue + [1]"),
            ("python", "total", "total.x"),
            ("go", "fmt.Printn", "fmt.Printn()"),
            ("java", "Foo", "new Foo()"),
            ("lua", "math", "math.pi"),
        ] {
            assert_eq!(statement(language, MODULES, name, code), None, "{name}");
        }
    }

    #[test]
    fn what_the_compiler_of_rust_proposes() {
        let said =
            "help: consider importing this struct\n  |\n1 + use std::collections::HashMap;\n  |\n";
        assert_eq!(
            proposed_use("HashMap", said),
            Some("use std::collections::HashMap;")
        );
        assert_eq!(proposed_use("HashSet", said), None);
    }
}
