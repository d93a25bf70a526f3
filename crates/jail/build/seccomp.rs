//! Turns `policy/*.toml` into BPF, so that a run only hands a finished program to the kernel.
//!
//! One program with four verdicts, assembled here rather than by seccompiler: that crate gives a filter one match and one
//! mismatch action, so allow, EPERM, ENOSYS and kill need a stack of filters, each a linear chain over hundreds of
//! calls. The kernel walks all of it for every call number when it builds its allow bitmap at install time, and again for
//! every call outside that bitmap. A stack of that shape took 0.9 ms to install where one binary search over merged
//! ranges takes 0.15 ms. The interpreter in `src/seccomp/tests.rs` checks every number against the table.
//!
//! Who makes many sandboxes need not have the kernel translate all of it for each. So there is the same once more in two parts, by
//! call: what is decided early and inherited by all, and the few calls that are needed until the last moment.

mod bpf;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use bpf::{AND, Instruction, JUMP_EQ, LOAD, RETURN, Range, branch, op, search};

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    #[serde(default)]
    constants: BTreeMap<String, u32>,
    #[serde(default)]
    calls: BTreeMap<String, Call>,
    #[serde(default)]
    gap: Vec<Gap>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    x86_64: Option<u32>,
    aarch64: Option<u32>,
    verdict: Verdict,
    reason: String,
    /// Needed to set up a sandbox, and so in the late part of a filter that comes in two.
    #[serde(default)]
    late: bool,
    /// The call is allowed when one of these holds; all conditions of a rule must.
    #[serde(default)]
    rules: Vec<Vec<Condition>>,
    /// Further rules of a sandbox with egress.
    #[serde(default)]
    network_rules: Vec<Vec<Condition>>,
}

/// Numbers of an architecture that name no call.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Gap {
    arch: String,
    first: u32,
    last: u32,
    reason: String,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Allow,
    Deny,
    Absent,
    Kill,
    Rules,
}

/// Looks at the low 32 bits of one argument: the kernel takes the arguments in question as int, so whatever stands
/// above them must not make a difference.
#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
struct Condition {
    arg: u32,
    /// Only these bits count.
    mask: Option<Value>,
    /// All bits but these count.
    ignore: Option<Value>,
    #[serde(rename = "in")]
    any_of: Option<Vec<Value>>,
    not_in: Option<Vec<Value>>,
}

/// A number, or names of constants joined by `|`.
#[derive(Deserialize, Clone)]
#[serde(untagged)]
enum Value {
    Number(u32),
    Names(String),
}

struct Arch {
    name: &'static str,
    /// `AUDIT_ARCH_*` of `linux/audit.h`.
    audit: u32,
    /// First and last number of a foreign ABI inside this architecture, killed like any other architecture.
    foreign: Option<(u32, u32)>,
    number: fn(&Call) -> Option<u32>,
}

const ARCHES: [Arch; 2] = [
    Arch {
        name: "x86_64",
        audit: 0xc000_003e,
        // x32 is bit 30 of the number. Negative numbers are nobody's ABI and get ENOSYS.
        foreign: Some((0x4000_0000, 0x7fff_ffff)),
        number: |call| call.x86_64,
    },
    Arch {
        name: "aarch64",
        audit: 0xc000_00b7,
        foreign: None,
        number: |call| call.aarch64,
    },
];

/// Reads the policy, checks it for every architecture and writes `seccomp_policy.rs` to `out_dir`.
pub fn generate(policy_dir: &Path, out_dir: &Path) -> Result<(), String> {
    println!("cargo::rerun-if-changed={}", policy_dir.display());
    println!("cargo::rerun-if-changed=build");
    let policy = read(policy_dir)?;
    let mut source = String::new();
    for arch in &ARCHES {
        source.push_str(&compile(&policy, arch)?);
    }
    let path = out_dir.join("seccomp_policy.rs");
    fs::write(&path, source).map_err(|error| format!("{}: {error}", path.display()))
}

fn read(dir: &Path) -> Result<PolicyFile, String> {
    let at = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).map_err(|error| at(dir, &error))? {
        let path = entry.map_err(|error| at(dir, &error))?.path();
        if path.extension().is_some_and(|ending| ending == "toml") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut policy = PolicyFile::default();
    for path in paths {
        let text = fs::read_to_string(&path).map_err(|error| at(&path, &error))?;
        let file: PolicyFile = toml::from_str(&text).map_err(|error| at(&path, &error))?;
        for (name, value) in file.constants {
            if policy.constants.insert(name.clone(), value).is_some() {
                return Err(at(&path, &format!("constant {name} is defined twice")));
            }
        }
        for (name, call) in file.calls {
            check_call(&call).map_err(|error| at(&path, &format!("{name}: {error}")))?;
            if policy.calls.insert(name.clone(), call).is_some() {
                return Err(at(&path, &format!("{name} is classified twice")));
            }
        }
        for gap in file.gap {
            if gap.first > gap.last
                || !ARCHES.iter().any(|arch| arch.name == gap.arch)
                || gap.reason.is_empty()
            {
                let message = "a gap needs a known arch, first <= last and a reason";
                return Err(at(
                    &path,
                    &format!("gap {}..={}: {message}", gap.first, gap.last),
                ));
            }
            policy.gap.push(gap);
        }
    }
    Ok(policy)
}

fn check_call(call: &Call) -> Result<(), String> {
    if call.reason.trim().is_empty() {
        return Err("a reason is missing".into());
    }
    if call.x86_64.is_none() && call.aarch64.is_none() {
        return Err("it has no number on any architecture".into());
    }
    let has_rules = !call.rules.is_empty() || !call.network_rules.is_empty();
    if has_rules != (call.verdict == Verdict::Rules) {
        return Err("rules and the verdict \"rules\" go together".into());
    }
    if !call.network_rules.is_empty() && !call.late {
        return Err("what depends on the network is decided late".into());
    }
    if call
        .rules
        .iter()
        .chain(&call.network_rules)
        .any(Vec::is_empty)
    {
        return Err("a rule without conditions would allow everything".into());
    }
    Ok(())
}

/// One call or gap of one architecture.
struct Row<'a> {
    name: &'a str,
    call: Option<&'a Call>,
    reason: &'a str,
}

/// Every number from zero to the highest known one, or an error naming the one that is missing or taken twice.
fn table<'a>(policy: &'a PolicyFile, arch: &Arch) -> Result<Vec<Row<'a>>, String> {
    let mut rows: BTreeMap<u32, Row> = BTreeMap::new();
    let mut put = |nr: u32, row: Row<'a>| {
        let name = row.name;
        match rows.insert(nr, row) {
            Some(other) => Err(format!(
                "{}: number {nr} is both {} and {name}",
                arch.name, other.name
            )),
            None => Ok(()),
        }
    };
    for (name, call) in &policy.calls {
        if let Some(nr) = (arch.number)(call) {
            put(
                nr,
                Row {
                    name,
                    call: Some(call),
                    reason: &call.reason,
                },
            )?;
        }
    }
    for gap in policy.gap.iter().filter(|gap| gap.arch == arch.name) {
        for nr in gap.first..=gap.last {
            put(
                nr,
                Row {
                    name: "",
                    call: None,
                    reason: &gap.reason,
                },
            )?;
        }
    }
    for (expected, nr) in (0..).zip(rows.keys()) {
        if expected != *nr {
            return Err(format!(
                "{}: number {expected} is not classified",
                arch.name
            ));
        }
    }
    Ok(rows.into_values().collect())
}

fn compile(policy: &PolicyFile, arch: &Arch) -> Result<String, String> {
    let rows = table(policy, arch)?;
    let verdict = |row: &Row| row.call.map_or(Verdict::Absent, |call| call.verdict);
    let mut source = String::new();
    let out = &mut source;
    let upper = arch.name.to_uppercase();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "#[cfg(any(test, target_arch = \"{}\"))]", arch.name);
    let _ = writeln!(out, "const {upper}: Policy = Policy {{");
    for (variant, part, network) in [
        ("base", Part::Whole, false),
        ("network", Part::Whole, true),
        ("early", Part::Early, false),
        ("late", Part::Late, false),
        ("late_network", Part::Late, true),
    ] {
        let program = program(policy, arch, &rows, (part, network))?;
        let _ = writeln!(out, "    {variant}: &[");
        for Instruction { code, jt, jf, k } in program {
            let (high, low) = (k >> 16, k & 0xffff);
            let _ = writeln!(
                out,
                "        Instruction {{ code: {code:#x}, jt: {jt}, jf: {jf}, k: 0x{high:04x}_{low:04x} }},"
            );
        }
        let _ = writeln!(out, "    ],");
    }
    let reachable = rows
        .iter()
        .filter(|row| matches!(verdict(row), Verdict::Allow | Verdict::Rules))
        .count();
    let _ = writeln!(out, "    reachable: {reachable},\n    entries: &[");
    for (nr, row) in rows.iter().enumerate() {
        let kind = match verdict(row) {
            Verdict::Allow => "Allow",
            Verdict::Deny => "Deny",
            Verdict::Absent => "Absent",
            Verdict::Kill => "Kill",
            Verdict::Rules => "Rules",
        };
        let (name, reason) = (row.name, row.reason);
        let rules = |of: fn(&Call) -> &[Vec<Condition>]| {
            row.call
                .map_or(Ok(String::from("&[]")), |call| {
                    rules_source(of(call), &policy.constants)
                })
                .map_err(|error| format!("{name}: {error}"))
        };
        let (rules, network_rules) = (
            rules(|call| &call.rules)?,
            rules(|call| &call.network_rules)?,
        );
        let _ = writeln!(
            out,
            "        Entry {{ name: {name:?}, nr: {nr}, verdict: Verdict::{kind}, reason: {reason:?}, rules: {rules}, network_rules: {network_rules} }},"
        );
    }
    let _ = writeln!(out, "    ],\n}};");
    Ok(source)
}

/// The rules as data, for those who put them into another form.
fn rules_source(
    rules: &[Vec<Condition>],
    constants: &BTreeMap<String, u32>,
) -> Result<String, String> {
    let mut source = String::from("&[");
    for rule in rules {
        source.push_str("&[");
        for condition in rule {
            let (mask, values, holds_if_found) = condition_parts(condition, constants)?;
            let literal = |n: &u32| format!("0x{:04x}_{:04x}", n >> 16, n & 0xffff);
            let values: Vec<_> = values.iter().map(literal).collect();
            let (mask, values) = (literal(&mask), values.join(", "));
            let _ = write!(
                source,
                "Condition {{ arg: {}, mask: {mask}, values: &[{values}], holds_if_found: {holds_if_found} }}, ",
                condition.arg
            );
        }
        source.push_str("], ");
    }
    source.push(']');
    Ok(source)
}

// Actions of linux/seccomp.h.
const ALLOW: u32 = 0x7fff_0000;
const EPERM: u32 = 0x0005_0000 + 1;
const ENOSYS: u32 = 0x0005_0000 + 38;
const KILL_PROCESS: u32 = 0x8000_0000;

// Offsets in struct seccomp_data; both architectures are little-endian, so an argument's low half comes first.
const OFFSET_NR: u32 = 0;
const OFFSET_ARCH: u32 = 4;
const OFFSET_ARGS: u32 = 16;

/// Which calls a program decides on. It allows the others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    /// All but the late ones; other architectures are its business.
    Early,
    Late,
}

impl Part {
    fn decides(self, call: Option<&Call>) -> bool {
        let late = call.is_some_and(|call| call.late);
        match self {
            Self::Whole => true,
            Self::Early => !late,
            Self::Late => late,
        }
    }
}

fn program(
    policy: &PolicyFile,
    arch: &Arch,
    rows: &[Row],
    (part, network): (Part, bool),
) -> Result<Vec<Instruction>, String> {
    // What no row is about.
    let (unknown, foreign) = if part.decides(None) {
        (ENOSYS, KILL_PROCESS)
    } else {
        (ALLOW, ALLOW)
    };
    let mut ranges: Vec<Range> = Vec::new();
    let mut add = |first: u32, code: Vec<Instruction>| {
        if ranges.last().is_none_or(|last| last.code != code) {
            ranges.push(Range { first, code });
        }
    };
    let mut end = 0;
    for (nr, row) in (0..).zip(rows) {
        let code = match row.call {
            call if !part.decides(call) => vec![op(RETURN, ALLOW)],
            None => vec![op(RETURN, ENOSYS)],
            Some(call) => decide(call, &policy.constants, network)
                .map_err(|error| format!("{}: {error}", row.name))?,
        };
        add(nr, code);
        end = nr + 1;
    }
    add(end, vec![op(RETURN, unknown)]);
    if let Some((first, last)) = arch.foreign {
        add(first, vec![op(RETURN, foreign)]);
        add(last + 1, vec![op(RETURN, unknown)]);
    }
    let mut program = Vec::new();
    if part.decides(None) {
        program.extend([
            op(LOAD, OFFSET_ARCH),
            branch(JUMP_EQ, arch.audit, 1, 0),
            op(RETURN, KILL_PROCESS),
        ]);
    }
    program.push(op(LOAD, OFFSET_NR));
    program.extend(search(&ranges));
    // BPF_MAXINSNS.
    if program.len() > 4096 {
        return Err(format!(
            "{}: {} instructions are more than the kernel takes",
            arch.name,
            program.len()
        ));
    }
    Ok(program)
}

fn decide(
    call: &Call,
    constants: &BTreeMap<String, u32>,
    network: bool,
) -> Result<Vec<Instruction>, String> {
    let action = match call.verdict {
        Verdict::Allow => ALLOW,
        Verdict::Deny => EPERM,
        Verdict::Absent => ENOSYS,
        Verdict::Kill => KILL_PROCESS,
        Verdict::Rules => {
            let further = if network {
                call.network_rules.as_slice()
            } else {
                &[]
            };
            let mut code = Vec::new();
            for rule in call.rules.iter().chain(further) {
                code.extend(rule_code(rule, constants)?);
            }
            code.push(op(RETURN, EPERM));
            return Ok(code);
        }
    };
    Ok(vec![op(RETURN, action)])
}

/// Allows if all conditions hold, else falls through to what comes next.
fn rule_code(
    rule: &[Condition],
    constants: &BTreeMap<String, u32>,
) -> Result<Vec<Instruction>, String> {
    let mut code = vec![op(RETURN, ALLOW)];
    // From the last condition to the first, since a failed one jumps over all that is already there.
    for condition in rule.iter().rev() {
        let mut whole = condition_code(condition, constants, code.len())?;
        whole.extend(code);
        code = whole;
    }
    Ok(code)
}

/// Mask, values, and whether one of them must be found or none.
fn condition_parts(
    condition: &Condition,
    constants: &BTreeMap<String, u32>,
) -> Result<(u32, Vec<u32>, bool), String> {
    let resolve = |value: &Value| resolve(value, constants);
    if condition.arg > 5 {
        return Err(format!("argument {} does not exist", condition.arg));
    }
    let mask = match (&condition.mask, &condition.ignore) {
        (None, None) => u32::MAX,
        (Some(mask), None) => resolve(mask)?,
        (None, Some(ignore)) => !resolve(ignore)?,
        (Some(_), Some(_)) => return Err("a condition takes mask or ignore, not both".into()),
    };
    let (values, holds_if_found) = match (&condition.any_of, &condition.not_in) {
        (Some(values), None) => (values, true),
        (None, Some(values)) => (values, false),
        _ => return Err("a condition takes exactly one of in and not_in".into()),
    };
    if values.is_empty() {
        return Err("a condition compares with at least one value".into());
    }
    let values = values.iter().map(resolve).collect::<Result<_, _>>()?;
    Ok((mask, values, holds_if_found))
}

/// Goes on to the next instruction if the condition holds, else jumps over `rest` instructions.
fn condition_code(
    condition: &Condition,
    constants: &BTreeMap<String, u32>,
    rest: usize,
) -> Result<Vec<Instruction>, String> {
    let (mask, values, holds_if_found) = condition_parts(condition, constants)?;
    let mut code = vec![op(LOAD, OFFSET_ARGS + 8 * condition.arg)];
    if mask != u32::MAX {
        code.push(op(AND, mask));
    }
    for (index, &value) in values.iter().enumerate() {
        if value & !mask != 0 {
            return Err(format!(
                "{value:#x} has bits outside the mask {mask:#x}, so it is never equal"
            ));
        }
        let left = values.len() - 1 - index;
        let far = |distance: usize| {
            u8::try_from(distance).map_err(|_| "too many values in one rule".to_string())
        };
        let (success, failure) = (far(left)?, far(left + rest)?);
        let last = left == 0;
        code.push(match (holds_if_found, last) {
            (true, true) => branch(JUMP_EQ, value, 0, failure),
            (true, false) => branch(JUMP_EQ, value, success, 0),
            (false, _) => branch(JUMP_EQ, value, failure, 0),
        });
    }
    Ok(code)
}

fn resolve(value: &Value, constants: &BTreeMap<String, u32>) -> Result<u32, String> {
    match value {
        Value::Number(number) => Ok(*number),
        Value::Names(names) => {
            names
                .split('|')
                .try_fold(0, |bits, name| match constants.get(name.trim()) {
                    Some(value) => Ok(bits | value),
                    None => Err(format!("constant {name} is not defined")),
                })
        }
    }
}
