//! Where an error is: in the code's own file, or in another.

/// As a program or a compiler names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub file: String,
    pub line: u32,
    pub column: Option<u32>,
}

/// What the code's file is called where nobody says otherwise. A command has none.
pub fn usual(language: &str) -> &'static str {
    match language {
        "bash" => "main.sh",
        "c" => "main.c",
        "cpp" => "main.cpp",
        "go" => "main.go",
        "java" => "Main.java",
        "javascript" => "main.js",
        "lua" => "main.lua",
        "perl" => "main.pl",
        "php" => "main.php",
        "python" => "main.py",
        "r" => "main.R",
        "ruby" => "main.rb",
        "rust" => "main.rs",
        "typescript" => "main.ts",
        _ => "",
    }
}

/// Of the language itself, of libraries, and of what a compiler made.
const FOREIGN: [&str; 13] = [
    "/usr/",
    "/bin/",
    "/opt/",
    "/lib/",
    "/nix/",
    "/rustc/",
    "library/core/",
    "library/std/",
    "library/alloc/",
    "/tmp/build/",
    "node:",
    "<",
    "(",
];

impl Place {
    pub fn new(file: &str, line: u32, column: Option<u32>) -> Self {
        let file = file.strip_prefix("file://").unwrap_or(file);
        let file = file.strip_prefix("/workspace/").unwrap_or(file);
        let mut file = file.trim();
        while let Some(rest) = file.strip_prefix("./") {
            file = rest;
        }
        Self {
            file: file.to_owned(),
            line,
            column,
        }
    }

    fn is_foreign(&self) -> bool {
        FOREIGN.iter().any(|root| self.file.starts_with(root))
            || ["bash", "sh", "dash", "environment"].contains(&self.file.as_str())
            || self.file.contains("node_modules/")
            || self.file.contains("site-packages/")
    }

    /// Whether it is in the file of this name. The workspace may be another directory than it mostly is.
    pub fn is_in(&self, main: &str) -> bool {
        if self.file == main {
            return !main.is_empty();
        }
        let (directory, name) = self.file.rsplit_once('/').unwrap_or(("", &self.file));
        name == main && directory.starts_with('/') && !self.is_foreign()
    }

    /// As it is told, if the file is one that came with the code.
    pub fn told(&self) -> Option<String> {
        (!self.is_foreign()).then(|| format!("{}:{}", self.file, self.line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{LanguageHint, Registry};

    #[test]
    fn the_usual_names_are_those_of_the_manifests() {
        let registry = Registry::with_directories([]);
        for name in &registry.names() {
            let hint = LanguageHint {
                language: Some(name),
                file_name: None,
            };
            let manifest = registry.find(&hint).unwrap();
            assert_eq!(usual(name), manifest.main_for(None), "{name}");
        }
    }

    #[test]
    fn files_of_others_are_known() {
        for (file, main) in [
            ("/workspace/main.js", true),
            ("file:///workspace/main.js", true),
            ("./main.js", true),
            ("main.js", true),
            ("/somewhere/else/main.js", true),
            ("/workspace/lib/main.js", false),
            ("lib/main.js", false),
            ("/workspace/h.js", false),
            ("/usr/share/nodejs/x/main.js", false),
            ("/packages/node_modules/x/main.js", false),
        ] {
            assert_eq!(Place::new(file, 1, None).is_in("main.js"), main, "{file}");
            assert!(!Place::new(file, 1, None).is_in(""), "{file}");
        }
        for (file, told) in [
            ("/workspace/lib/h.js", Some("lib/h.js:6")),
            ("./h.lua", Some("h.lua:6")),
            ("node:internal/modules/cjs/loader", None),
            ("<internal:/usr/lib/ruby/kernel_require.rb>", None),
            ("/usr/include/c++/12/bits/stl_algo.h", None),
        ] {
            assert_eq!(Place::new(file, 6, None).told().as_deref(), told, "{file}");
        }
    }
}
