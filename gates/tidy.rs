//! Gate: what a reader may rely on in every tracked file. Each rule is shown a planted mistake first and must flag it.
//!
//! Width 120, no leftovers, no file past 600 lines; the arrows between modules that must not exist; `unsafe` and the
//! environment only where they may be; no path of somebody's machine; every kernel file in the index of
//! `csrc/README.md`; no dead file; every gate a target of its own.

mod common;
#[path = "common/source.rs"]
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use common::Gate;
use source::{code, lines_with_word, modules_declared, modules_named};

const WIDTH_MAX: usize = 120;
const LINES_MAX: usize = 600;

/// Made by a program: neither wrapped nor cut by hand.
const GENERATED: &[&str] = &["src/model/kernels/bindings.rs", "csrc/soft/exports.inc", "Cargo.lock"];
const DATA: &[&str] = &["models/", "tests/data/"];
const CODE: &[&str] = &["rs", "cu", "cuh", "cpp", "c", "h", "inc", "sh", "py", "mk", "toml"];

/// A file whose path starts with the first names no module of the second.
const ARROWS: &[(&str, &[&str])] = &[
    ("src/scheduler/", &["device", "images", "model", "engine", "server", "text", "clock"]),
    ("src/kv/", &["device", "images", "model", "engine", "server", "text", "scheduler", "clock"]),
    ("src/server/", &["kv", "scheduler", "device", "images", "step", "graph", "sampler", "slots"]),
    ("src/text/", &["kv", "scheduler", "device", "images", "step", "graph", "sampler", "slots", "engine", "server"]),
];
/// The device knows nothing of the model: it names itself, and where it opens the embedded driver, the images.
const DEVICE_NAMES: &[&str] = &["device", "images"];
const PURE: &[&str] = &["src/scheduler/", "src/kv/"];
const UNSAFE_IN: &[&str] = &["src/device/", "src/model/kernels/"];
/// The counting allocator of benches and tests; implementing the trait is unsafe, and nothing else in it may be.
const ALLOCATOR: &str = "src/alloc.rs";

/// What a rule finds, a line a finding.
type Rule = fn(&Tree) -> Vec<String>;

fn main() {
    let mut gate = Gate::start("tidy");
    let tree = Tree::tracked();
    gate.fact(tree.files.len() > 100, &format!("{} tracked files are read", tree.files.len()));
    let rules: &[(&str, Rule)] = &[
        ("lines are at most 120 wide", too_wide),
        ("nothing is left over", left_over),
        ("no code file has more than 600 lines", too_long),
        ("the arrows between modules hold", arrows),
        ("unsafe stands where it may, with its reason", unsafe_fences),
        ("only main.rs reads the environment", environment),
        ("no path of a machine", machine_paths),
        ("every kernel file is in csrc/README.md", kernel_index),
        ("no dead file", dead_files),
        ("every gate is a target of its own", gate_targets),
    ];
    let planted = planted();
    for (name, rule) in rules {
        let of_rule: Vec<&Planted> = planted.iter().filter(|p| p.rule == *name).collect();
        gate.fact(!of_rule.is_empty(), &format!("{name}: has a planted mistake"));
        for plant in of_rule {
            let found = rule(&plant.tree).len();
            gate.fact(
                found == plant.findings,
                &format!("{name}: {found} of {} planted: {}", plant.findings, plant.what),
            );
        }
        let found = rule(&tree);
        gate.fact(found.is_empty(), &format!("{name}: {} findings", found.len()));
        found.iter().for_each(|finding| println!("     {finding}"));
    }
    gate.finish();
}

/// The tracked text files, by path.
struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// What git lists, new files that it does not ignore included; binary data is left out.
    fn tracked() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let list = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .expect("git runs");
        assert!(list.status.success(), "git lists files: {}", String::from_utf8_lossy(&list.stderr));
        let list = String::from_utf8(list.stdout).expect("paths are UTF-8");
        let read = |path: &str| Some((path.to_owned(), std::fs::read_to_string(root.join(path)).ok()?));
        Tree { files: list.split('\0').filter(|p| !p.is_empty()).filter_map(read).collect() }
    }

    fn of(files: &[(&str, &str)]) -> Self {
        Tree { files: files.iter().map(|(p, t)| ((*p).to_owned(), (*t).to_owned())).collect() }
    }

    fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.written().filter(move |(path, _)| path.starts_with(prefix))
    }

    /// Files that people write: neither data nor generated.
    fn written(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(p, t)| (p.as_str(), t.as_str())).filter(|(path, _)| {
            !GENERATED.contains(path) && !DATA.iter().any(|folder| path.starts_with(folder) && !path.ends_with(".md"))
        })
    }

    fn rust<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.under(prefix).filter(|(path, _)| path.ends_with(".rs"))
    }

    fn text(&self, path: &str) -> &str {
        self.files.get(path).map_or("", String::as_str)
    }
}

fn extension(path: &str) -> &str {
    path.rsplit('/').next().and_then(|name| name.rsplit_once('.')).map_or("", |(_, extension)| extension)
}

fn is_code(path: &str) -> bool {
    CODE.contains(&extension(path)) || path.starts_with(".ci/")
}

fn too_wide(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in tree.written() {
        let prose = extension(path) == "md";
        if !prose && !is_code(path) {
            continue;
        }
        for (i, line) in text.lines().enumerate() {
            let width = line.chars().count();
            // A row of a table cannot be wrapped.
            if width > WIDTH_MAX && !(prose && line.starts_with('|')) {
                found.push(format!("{path}:{}: {width} wide", i + 1));
            }
        }
    }
    found
}

fn left_over(tree: &Tree) -> Vec<String> {
    // Spelled in halves, so that this file does not flag itself.
    let words = [concat!("FIX", "ME"), concat!("TO", "DO"), concat!("XX", "X")];
    let calls = [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("dbg", "!("), concat!("<<<", "<<<<")];
    let mut found = Vec::new();
    for (path, text) in tree.written() {
        for word in words {
            found.extend(lines_with_word(text, word).iter().map(|line| format!("{path}:{line}: {word}")));
        }
        for call in calls {
            let lines = text.lines().enumerate().filter(|(_, line)| line.contains(call));
            found.extend(lines.map(|(i, _)| format!("{path}:{}: {call}", i + 1)));
        }
    }
    found
}

fn too_long(tree: &Tree) -> Vec<String> {
    let code = tree.written().filter(|(path, _)| is_code(path));
    let counted = code.map(|(path, text)| (path, text.lines().count()));
    counted.filter(|(_, lines)| *lines > LINES_MAX).map(|(path, lines)| format!("{path}: {lines} lines")).collect()
}

fn arrows(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (from, forbidden) in ARROWS {
        for (path, text) in tree.rust(from) {
            let named = modules_named(&code(text));
            let seen = named.iter().filter(|module| forbidden.contains(&module.as_str()));
            found.extend(seen.map(|module| format!("{path} sees {module}")));
        }
    }
    for (path, text) in tree.rust("src/device/") {
        let named = modules_named(&code(text));
        let strange = named.iter().filter(|module| !DEVICE_NAMES.contains(&module.as_str()));
        found.extend(strange.map(|module| format!("{path} sees {module}")));
        if named.contains("images") && path != "src/device/soft.rs" {
            found.push(format!("{path} sees images"));
        }
    }
    for (path, text) in PURE.iter().flat_map(|folder| tree.rust(folder)) {
        let code = code(text);
        for word in ["Instant", "SystemTime", "time"] {
            // `time` as a word is `std::time`; tests of pure code need no clock either.
            found
                .extend(lines_with_word(&code, word).iter().map(|line| format!("{path}:{line} reads a clock: {word}")));
        }
    }
    found
}

fn unsafe_fences(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in tree.rust("") {
        let code = code(text);
        let lines: Vec<&str> = text.lines().collect();
        let allocator = (!path.starts_with("src/") || path == ALLOCATOR) && code.contains("GlobalAlloc");
        for line in lines_with_word(&code, "unsafe") {
            if !allocator && !UNSAFE_IN.iter().any(|folder| path.starts_with(folder)) {
                found.push(format!("{path}:{line}: unsafe outside of its fences"));
            }
            // A declaration states what it asks for, under "# Safety"; a use says why it holds.
            let is_declaration =
                ["unsafe fn", "unsafe trait", "unsafe extern"].iter().any(|w| lines[line - 1].contains(w));
            let reach = if is_declaration { 25 } else { 8 };
            let before = &lines[(line - 1).saturating_sub(reach)..line];
            if !before.iter().any(|l| l.contains("SAFETY:") || l.contains("# Safety")) {
                found.push(format!("{path}:{line}: unsafe without a SAFETY note"));
            }
        }
    }
    found
}

fn environment(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in tree.rust("src/").filter(|(path, _)| *path != "src/main.rs") {
        let code = code(text);
        let reads = ["env::var", "env::set_var", "env::remove_var", "env::args"];
        let lines = code.lines().enumerate().filter(|(_, line)| reads.iter().any(|read| line.contains(read)));
        found.extend(lines.map(|(i, _)| format!("{path}:{} reads the environment", i + 1)));
    }
    for (path, text) in tree.under("csrc/kernels/").chain(tree.under("csrc/common/")) {
        found.extend(lines_with_word(text, "getenv").iter().map(|line| format!("{path}:{line} reads the environment")));
    }
    found
}

fn machine_paths(tree: &Tree) -> Vec<String> {
    let paths = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/Us", "ers/")];
    let mut found = Vec::new();
    // Data too: a tokenizer or a config may have brought a path along.
    for (path, text) in &tree.files {
        let lines = text.lines().enumerate().filter(|(_, line)| paths.iter().any(|p| line.contains(p)));
        found.extend(lines.map(|(i, _)| format!("{path}:{}: a path of a machine", i + 1)));
    }
    found
}

fn kernel_index(tree: &Tree) -> Vec<String> {
    let index = tree.text("csrc/README.md");
    let names = tree.under("csrc/kernels/").map(|(path, _)| path.rsplit('/').next().expect("a name"));
    let missing = names.filter(|name| !index.contains(&format!("`{name}`")));
    missing.map(|name| format!("csrc/README.md does not name {name}")).collect()
}

fn dead_files(tree: &Tree) -> Vec<String> {
    let mut alive: BTreeSet<String> = BTreeSet::new();
    let is_root = |path: &str| {
        // A target of cargo: tests/a.rs, tests/a/main.rs, gates/a.rs.
        let in_folder = |folder: &str| {
            path.strip_prefix(folder).is_some_and(|rest| !rest.trim_end_matches("/main.rs").contains('/'))
        };
        ["src/lib.rs", "src/main.rs", "build.rs"].contains(&path) || in_folder("tests/") || in_folder("gates/")
    };
    let mut queue: Vec<String> = tree.rust("").map(|(path, _)| path.to_owned()).filter(|path| is_root(path)).collect();
    while let Some(path) = queue.pop() {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", &path));
        let own = name.trim_end_matches(".rs");
        for (module, at) in modules_declared(tree.text(&path)) {
            let beside = if is_root(&path) || own == "mod" { folder.to_owned() } else { format!("{folder}/{own}") };
            let places = match at {
                Some(at) => vec![joined(folder, &at)],
                None => vec![format!("{beside}/{module}.rs"), format!("{beside}/{module}/mod.rs")],
            };
            queue.extend(places.into_iter().filter(|place| tree.files.contains_key(place) && !alive.contains(place)));
        }
        alive.insert(path);
    }
    let mut found: Vec<String> = tree
        .rust("")
        .filter(|(path, _)| !alive.contains(*path))
        .map(|(path, _)| format!("{path}: no mod names it"))
        .collect();
    for (path, _) in tree.written() {
        let name = path.rsplit('/').next().expect("a name");
        let is_header = path.starts_with("csrc/") && ["h", "cuh", "inc", "map"].contains(&extension(path));
        let is_script = path.starts_with("scripts/");
        let named_elsewhere = |(other, text): (&String, &String)| other != path && text.contains(name);
        if (is_header || is_script) && !tree.files.iter().any(named_elsewhere) {
            found.push(format!("{path}: nothing names it"));
        }
    }
    found
}

/// A path relative to a folder, "../" resolved.
fn joined(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').collect();
    for part in path.split('/') {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

fn gate_targets(tree: &Tree) -> Vec<String> {
    let manifest = tree.text("Cargo.toml");
    let gates = tree.rust("gates/").filter(|(path, _)| path.matches('/').count() == 1);
    let has_target = |path: &str| {
        manifest.split("[[test]]").skip(1).any(|target| {
            let name = path.trim_start_matches("gates/").trim_end_matches(".rs");
            target.contains(&format!("path = \"{path}\""))
                && target.contains(&format!("name = \"gate_{name}\""))
                && target.contains("harness = false")
                && target.contains("test = false")
        })
    };
    gates
        .filter(|(path, _)| !has_target(path))
        .map(|(path, _)| format!("Cargo.toml has no target for {path}"))
        .collect()
}

/// A tree with mistakes of one rule, and how many findings it must give.
struct Planted {
    rule: &'static str,
    what: &'static str,
    findings: usize,
    tree: Tree,
}

fn planted() -> Vec<Planted> {
    let plant = |rule, what, findings, files: &[(&str, &str)]| Planted { rule, what, findings, tree: Tree::of(files) };
    let wide = format!("// {}\n", "x".repeat(WIDTH_MAX));
    let long = "\n".repeat(LINES_MAX + 1);
    let word = concat!("// TO", "DO later\nlet MASTODO", "N = 1;");
    let machine = concat!("see /ho", "me/somebody/notes");
    let unsafe_rule = "unsafe stands where it may, with its reason";
    let main = ("src/main.rs", "mod alive;");
    let manifest = "[[test]]\nname = \"gate_a\"\npath = \"gates/a.rs\"\nharness = false\ntest = false\n";
    let pool =
        "use crate::{\n    device::Stream,\n    kv::{Pool, device},\n};\n// crate::engine\nlet s = \"crate::model\";";
    vec![
        plant(
            "lines are at most 120 wide",
            "a line of 123 in code and in prose",
            2,
            &[("src/a.rs", &wide), ("a.md", &wide)],
        ),
        plant(
            "lines are at most 120 wide",
            "data, tables and generated files may be wide",
            0,
            &[("tests/data/a.json", &wide), ("a.md", &format!("|{wide}")), (GENERATED[0], &wide)],
        ),
        plant("nothing is left over", "a note for later, not a word that holds it", 1, &[("src/a.rs", word)]),
        plant("no code file has more than 600 lines", "601 lines", 1, &[("csrc/soft/a.cpp", &long), ("a.md", &long)]),
        plant(
            "the arrows between modules hold",
            "a scheduler that sees the device in a group",
            1,
            &[("src/scheduler/a.rs", pool)],
        ),
        plant("the arrows between modules hold", "a clock in kv", 1, &[("src/kv/a.rs", "use std::time::Duration;")]),
        plant(
            "the arrows between modules hold",
            "a server that sees kv",
            1,
            &[("src/server/a.rs", "crate::kv::Pool::new()")],
        ),
        plant(
            "the arrows between modules hold",
            "a device that sees the model, and the images outside of soft.rs",
            2,
            &[
                ("src/device/a.rs", "use crate::model::Config; use crate::images::FATBINS;"),
                ("src/device/soft.rs", "use crate::images::SOFT_DRIVER;"),
            ],
        ),
        plant(
            unsafe_rule,
            "unsafe in the engine, with its note",
            1,
            &[("src/engine/a.rs", "// SAFETY: no.\nunsafe { f() }")],
        ),
        plant(
            unsafe_rule,
            "unsafe in the device without a note; in a comment it is a word",
            1,
            &[
                ("src/device/a.rs", "unsafe { f() } // unsafe"),
                ("src/device/b.rs", "/// # Safety\n/// p is valid.\nunsafe fn f(p: *const u8) {}"),
            ],
        ),
        plant(
            unsafe_rule,
            "an allocator in the engine, and a file of that name without one; the counting one is no finding",
            2,
            &[
                ("src/engine/a.rs", "// SAFETY: as System.\nunsafe impl GlobalAlloc for A {}"),
                ("src/b/alloc.rs", "// SAFETY: as System.\nunsafe impl GlobalAlloc for A {}"),
                (ALLOCATOR, "// SAFETY: as System.\nunsafe impl GlobalAlloc for A {}"),
            ],
        ),
        plant(
            unsafe_rule,
            "the allocator of a test",
            0,
            &[("tests/a.rs", "// SAFETY: as System.\nunsafe impl GlobalAlloc for A {}")],
        ),
        plant(
            "only main.rs reads the environment",
            "a variable read in the engine, and in a kernel",
            2,
            &[
                ("src/engine/a.rs", "std::env::var(\"A\")"),
                ("src/main.rs", "std::env::var(\"A\")"),
                ("csrc/kernels/a.cu", "getenv(\"A\")"),
            ],
        ),
        plant("no path of a machine", "a path in prose", 1, &[("a.md", machine)]),
        plant(
            "every kernel file is in csrc/README.md",
            "a kernel that the index lacks",
            1,
            &[("csrc/README.md", "`a.cu`"), ("csrc/kernels/a.cu", ""), ("csrc/kernels/b.cu", "")],
        ),
        plant(
            "no dead file",
            "a module that nobody declares, a header and a script that nobody names",
            3,
            &[
                main,
                ("src/alive.rs", "#[cfg(test)]\nmod tests;"),
                ("src/alive/tests.rs", ""),
                ("src/dead.rs", "// mod dead;"),
                ("gates/a.rs", "#[path = \"../tests/support/b.rs\"]\nmod b;"),
                ("tests/support/b.rs", ""),
                ("csrc/common/dead.h", ""),
                ("scripts/dead.sh", "# dead.sh"),
            ],
        ),
        plant(
            "every gate is a target of its own",
            "a gate without a target",
            1,
            &[("Cargo.toml", manifest), ("gates/a.rs", ""), ("gates/b.rs", ""), ("gates/common/mod.rs", "")],
        ),
    ]
}
