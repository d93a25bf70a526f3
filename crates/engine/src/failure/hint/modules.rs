//! Modules that are missing: not installed, or there and not imported.

use super::super::meant::{likely, quoted};
use super::super::unimported;

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

/// Languages that `packages` is for.
const PACKAGED: [&str; 3] = ["python", "javascript", "typescript"];

/// What Python code often imports.
pub const MODULES: &str = "aiohttp argparse asyncio base64 boto3 click collections copy csv dataclasses datetime decimal django enum fastapi flask \
    fractions functools glob gzip hashlib heapq httpx inspect io itertools jinja2 json keras logging lxml math matplotlib multiprocessing \
    networkx nltk numpy openai openpyxl operator os pandas pathlib pickle plotly polars psutil pydantic pytest queue random re redis requests \
    rich scipy seaborn secrets shutil socket sqlalchemy sqlite3 statistics string struct subprocess sympy sys tempfile tensorflow textwrap \
    threading time torch tqdm traceback transformers typing unittest urllib urllib3 uuid weakref xml zipfile";

/// `name 'math' is not defined`, `fs is not defined`, `uninitialized constant Set`.
pub fn not_imported(language: &str, message: &str, code: &str) -> Option<String> {
    let name = if let Some(constant) = message.strip_prefix("uninitialized constant ") {
        constant
    } else {
        let (before, _) = message.split_once(" is not defined")?;
        quoted(before).unwrap_or(before)
    };
    unimported::statement(language, MODULES, name, code)
}

/// Where the code has it already, it is elsewhere that it is missed.
pub fn missing(statement: &str, code: &str) -> Option<String> {
    let shown = statement.trim_end_matches(';');
    (!code.contains(shown)).then(|| format!("It is missing `{shown}`."))
}

pub fn missing_module(message: &str, language: &str) -> Option<String> {
    // `cannot load such file -- name` and `Can't locate Name.pm in @INC` have no quotes.
    let perl = message
        .strip_prefix("Can't locate ")
        .and_then(|rest| rest.split(".pm in").next());
    if let Some(name) = perl {
        let name = name.replace('/', "::");
        return Some(format!(
            "{name} is not installed here. Use what is there, or a template or image that has it."
        ));
    }
    let name = quoted(message).or_else(|| message.rsplit("-- ").next())?;
    if message.starts_with("Import '") && message.ends_with("' not allowed") {
        return Some(format!(
            "{name} is not among the modules that this run may import (imports): add it there, or do without."
        ));
    }
    if let Some(rest) = message.strip_prefix("cannot import name ") {
        // The module is there.
        let module = rest.split(" from ").nth(1).and_then(quoted)?;
        return Some(format!(
            "{module} is there, but has no {name}: look at its name, or at which version is installed."
        ));
    }
    if let ("No module named", Some((package, module))) =
        (message.get(..15).unwrap_or_default(), name.rsplit_once('.'))
    {
        // Python names the first that it does not find.
        return Some(format!(
            "{package} is there, but has no module {module}: look at its name, or at which version is installed."
        ));
    }
    let top = name
        .split(['.', '/'])
        .next()
        .filter(|top| !top.is_empty())?;
    let advice = if PACKAGED.contains(&language) {
        "Use what is there, ask for it with `packages`, or use a template or image that has it."
    } else {
        "Use what is there, or a template or image that has it."
    };
    if language != "python" {
        return Some(format!("{top} is not installed here. {advice}"));
    }
    if let Some((_, package)) = PACKAGES.iter().find(|(module, _)| *module == top) {
        return Some(format!(
            "{top} is not installed here; it comes with the package {package}. {advice}"
        ));
    }
    // What somebody has put under a name that is nearly right is not to be recommended.
    let known = MODULES.split_whitespace();
    let known = known.chain(PACKAGES.iter().map(|(module, _)| *module));
    match likely(top, known).filter(|meant| *meant != top) {
        Some(meant) => Some(format!("There is no {top} here; did you mean {meant}?")),
        None => Some(format!("{top} is not installed here. {advice}")),
    }
}
