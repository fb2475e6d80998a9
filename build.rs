//! Compiles `csrc/` into what the binary embeds: the software device and its kernel image as shared objects (always, by
//! the host compiler), and one fatbin per kernel file (when nvcc is found). They are not linked into the binary: the
//! objects are loaded at run time through `src/device/`, so a machine without a GPU and one with a GPU run one binary.
//!
//! One thing is linked in: two functions over the toolkit's header-only NVTX, in a build with GPU kernels (or with
//! `GEMMA4_NVTX=on`) that finds the header in `$CUDA_HOME/include`; elsewhere profilers see no ranges.
//!
//! nvcc is looked for in `$CUDA_HOME/bin`, then in `$PATH`. `GEMMA4_GPU_ARCHS` (comma-separated, default
//! `80,90a,100,120`) names the architectures; `GEMMA4_NVCC=off` leaves the GPU kernels out.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

/// The rules of the numeric contract that are compiler flags (numerics, section 1).
const HOST_FLAGS: [&str; 8] =
    ["-std=c++17", "-O2", "-g1", "-fPIC", "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-Wextra"];
const NVCC_FLAGS: [&str; 6] = ["-std=c++17", "-O3", "--fmad=false", "-prec-div=true", "-prec-sqrt=true", "-ftz=false"];

/// Kernel files that the tracer image shares with the shipped one: everything that moves step state, tokens or cells.
const TRACER_KEEPS: [&str; 10] = [
    "image",
    "kv_copy",
    "pack",
    "rope_table",
    "sample_groups",
    "sample_rows",
    "scatter",
    "step_begin",
    "synthetic",
    "tail",
];

fn main() {
    for part in ["common", "kernels", "nvtx", "soft", "tracer", "gemma4_kernels.h"] {
        println!("cargo:rerun-if-changed=csrc/{part}");
    }
    println!("cargo:rerun-if-env-changed=CUDA_HOME");
    println!("cargo:rerun-if-env-changed=GEMMA4_NVCC");
    println!("cargo:rerun-if-env-changed=GEMMA4_NVTX");
    println!("cargo:rerun-if-env-changed=GEMMA4_GPU_ARCHS");
    println!("cargo:rustc-check-cfg=cfg(gemma4_gpu_kernels)");
    println!("cargo:rustc-check-cfg=cfg(gemma4_nvtx)");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let csrc = manifest_dir().join("csrc");
    let soft_files = files(&csrc.join("soft"), "cpp");
    let kernel_files = files(&csrc.join("kernels"), "cu");

    let host = HostCompiler::find();
    let soft_objects = host.objects(&out.join("soft"), &soft_files, None);
    let exports = format!("-Wl,--version-script={}", csrc.join("soft/exports.map").display());
    let soft = host.shared_object(
        &out,
        "libcuda.so",
        &soft_objects,
        &["-pthread", "-Wl,-Bsymbolic", "-Wl,-z,nodelete", &exports],
    );
    let image_files: Vec<PathBuf> = kernel_files.iter().cloned().chain([csrc.join("kernels/image.cpp")]).collect();
    let image_objects = host.objects(&out.join("kernels"), &image_files, None);
    let image = host.shared_object(&out, "libgemma4_kernels_soft.so", &image_objects, &[]);

    // What the tracer does not replace is the shipped object.
    let is_kept = |object: &&PathBuf| TRACER_KEEPS.iter().any(|stem| object.file_stem() == Some(OsStr::new(stem)));
    let mut tracer_objects: Vec<PathBuf> = image_objects.iter().filter(is_kept).cloned().collect();
    tracer_objects.extend(host.objects(&out.join("tracer"), &files(&csrc.join("tracer"), "cu"), None));
    let tracer = host.shared_object(&out, "libgemma4_kernels_tracer.so", &tracer_objects, &[]);

    if let Some(include) = nvtx_include() {
        cc::Build::new().file(csrc.join("nvtx/ranges.c")).include(include).compile("gemma4_nvtx");
        println!("cargo:rustc-cfg=gemma4_nvtx");
    }

    let mut source = String::new();
    let bytes = |path: &Path| format!("include_bytes!({path:?})");
    writeln!(source, "/// The software CUDA device, a shared object with SONAME libcuda.so.").unwrap();
    writeln!(source, "pub static SOFT_DRIVER: &[u8] = {};", bytes(&soft)).unwrap();
    writeln!(source, "/// The kernels compiled for the software device.").unwrap();
    writeln!(source, "pub static SOFT_KERNELS: &[u8] = {};", bytes(&image)).unwrap();

    writeln!(source, "/// The tracer kernels (`csrc/tracer`), for gates: same names, a hash for a model.").unwrap();
    writeln!(source, "pub static TRACER_KERNELS: &[u8] = {};", bytes(&tracer)).unwrap();

    let mut planted = String::new();
    if env::var_os("CARGO_FEATURE_PLANTED_MISTAKES").is_some() {
        for (name, files) in planted_mistakes(&kernel_files) {
            // Only the files that know the mistake are compiled again; the rest of the image is the shipped one.
            let wrong = host.objects(&out.join(format!("planted_{name}")), &files, Some(&name));
            let same_name = |object: &&PathBuf| !wrong.iter().any(|w| w.file_name() == object.file_name());
            let objects: Vec<PathBuf> = image_objects.iter().filter(same_name).chain(&wrong).cloned().collect();
            let so = host.shared_object(&out, &format!("planted_{name}.so"), &objects, &[]);
            write!(planted, "({:?}, {}),", name.to_lowercase(), bytes(&so)).unwrap();
        }
    }
    writeln!(source, "/// Kernel images with one planted mistake each (feature `planted-mistakes`).").unwrap();
    writeln!(source, "pub static PLANTED_KERNELS: &[(&str, &[u8])] = &[{planted}];").unwrap();

    let fatbins = nvcc().map(|nvcc| compile_fatbins(&nvcc, &kernel_files, &out)).unwrap_or_default();
    if !fatbins.is_empty() {
        println!("cargo:rustc-cfg=gemma4_gpu_kernels");
        // The driver reads the words of a fatbin where they lie.
        writeln!(source, "#[repr(align(64))]\nstruct Aligned<T>(T);").unwrap();
    }
    let stem = |path: &Path| path.file_stem().expect("a file").to_string_lossy().into_owned();
    let list: String =
        fatbins.iter().map(|path| format!("({:?}, &Aligned(*{}).0),", stem(path), bytes(path))).collect();
    writeln!(source, "/// GPU kernels, one fatbin a kernel file, by its name; empty in a build without nvcc.").unwrap();
    writeln!(source, "pub static FATBINS: &[(&str, &[u8])] = &[{list}];").unwrap();
    std::fs::write(out.join("images.rs"), source).expect("OUT_DIR is writable");
}

/// Asked at run time: a build folder that came from another place holds this script as it was built there.
fn manifest_dir() -> PathBuf {
    PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"))
}

/// The mistakes the gates plant: every `G4_PLANT_NAME` the kernel files know, with the files that know it. They are
/// compile-time switches, present only under the feature `planted-mistakes` and never in the shipped image.
fn planted_mistakes(kernels: &[PathBuf]) -> BTreeMap<String, Vec<PathBuf>> {
    let mut mistakes: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    let common = manifest_dir().join("csrc/common");
    let headers: Vec<(String, String)> = files(&common, "h")
        .iter()
        .map(|path| (path.file_name().expect("a file").to_string_lossy().into_owned(), read(path)))
        .collect();
    for path in kernels {
        let text = read(path);
        // A mistake in a header concerns the kernels that include it, directly or through another header.
        let mut seen = text.clone();
        let mut grown = true;
        let mut included = BTreeSet::new();
        while grown {
            grown = false;
            for (name, header) in &headers {
                if seen.contains(&format!("{name}\"")) && included.insert(name) {
                    seen.push_str(header);
                    grown = true;
                }
            }
        }
        let names: BTreeSet<String> = seen
            .split("G4_PLANT_")
            .skip(1)
            .map(|part| {
                part.chars().take_while(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || *c == '_').collect()
            })
            .collect();
        for name in names {
            mistakes.entry(name).or_default().push(path.clone());
        }
    }
    mistakes
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Files of a folder with an extension, sorted, so that builds repeat.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.expect("readable folder").path())
        .filter(|path| path.extension() == Some(OsStr::new(extension)))
        .collect();
    files.sort();
    files
}

struct HostCompiler(cc::Tool);

impl HostCompiler {
    fn find() -> Self {
        let tool = cc::Build::new().cpp(true).cargo_metadata(false).opt_level(2).warnings(false).get_compiler();
        HostCompiler(tool)
    }

    /// Compiles each file to an object in `folder`, with `G4_PLANT_<planted>` defined if given.
    fn objects(&self, folder: &Path, sources: &[PathBuf], planted: Option<&str>) -> Vec<PathBuf> {
        std::fs::create_dir_all(folder).expect("OUT_DIR is writable");
        let mut objects = Vec::new();
        let mut commands = Vec::new();
        for source in sources {
            let object = folder.join(source.file_name().expect("a file")).with_extension("o");
            let mut command = Command::new(self.0.path());
            command.args(HOST_FLAGS).args(sanitizer_flags());
            command.args(planted.map(|name| format!("-DG4_PLANT_{name}")));
            // A dependency file beside each object, so that only what changed is compiled again.
            command.args(["-MMD", "-x", "c++", "-c"]).arg(source).arg("-o").arg(&object);
            if !is_fresh(&object, &command) {
                commands.push(command);
            }
            objects.push(object);
        }
        run_all(commands, jobs_max());
        objects
    }

    fn shared_object(&self, out: &Path, name: &str, objects: &[PathBuf], flags: &[&str]) -> PathBuf {
        let library = out.join(name);
        let mut link = Command::new(self.0.path());
        link.args(["-shared", "-static-libstdc++", "-static-libgcc"])
            .arg(format!("-Wl,-soname,{name}"))
            .args(sanitizer_flags());
        if sanitizer_flags().is_empty() {
            // Under sanitizers the run-time is preloaded, so its symbols are not there yet.
            link.arg("-Wl,-z,defs");
        }
        link.args(objects).args(flags).arg("-o").arg(&library);
        run(link);
        library
    }
}

/// Feature `sanitize`: the shared objects are instrumented; tests then run with the sanitizer's run-time preloaded.
fn sanitizer_flags() -> &'static [&'static str] {
    if env::var_os("CARGO_FEATURE_SANITIZE").is_some() {
        &["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]
    } else {
        &[]
    }
}

/// The toolkit's folder of headers, where NVTX is among them and profilers are of use.
fn nvtx_include() -> Option<PathBuf> {
    let is = |variable: &str, value: &str| env::var(variable).as_deref() == Ok(value);
    if is("GEMMA4_NVCC", "off") && !is("GEMMA4_NVTX", "on") {
        return None;
    }
    let include = Path::new(&env::var_os("CUDA_HOME")?).join("include");
    include.join("nvtx3/nvToolsExt.h").is_file().then_some(include)
}

/// nvcc, unless switched off or not there.
fn nvcc() -> Option<PathBuf> {
    if env::var("GEMMA4_NVCC").as_deref() == Ok("off") {
        return None;
    }
    let of_home = env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin/nvcc")).filter(|p| p.is_file());
    of_home.or_else(|| {
        let path = env::var_os("PATH")?;
        env::split_paths(&path).map(|folder| folder.join("nvcc")).find(|p| p.is_file())
    })
}

fn compile_fatbins(nvcc: &Path, sources: &[PathBuf], out: &Path) -> Vec<PathBuf> {
    let archs = env::var("GEMMA4_GPU_ARCHS").unwrap_or_else(|_| "80,90a,100,120".into());
    let archs: Vec<&str> = archs.split(',').map(str::trim).filter(|a| !a.is_empty()).collect();
    // Architectures of a file side by side, since a few files take most of the time; files in what jobs that leaves.
    let threads = archs.len().clamp(1, jobs_max());
    let jobs: Vec<(Command, PathBuf)> = sources
        .iter()
        .map(|source| {
            let stem = source.file_stem().expect("a file");
            let fatbin = out.join(stem).with_extension("fatbin");
            let mut command = Command::new(nvcc);
            command.args(NVCC_FLAGS).arg("-fatbin");
            for arch in &archs {
                command.arg("-gencode").arg(format!("arch=compute_{arch},code=sm_{arch}"));
            }
            if threads > 1 {
                command.arg("--threads").arg(threads.to_string());
            }
            command.arg(source).arg("-o").arg(&fatbin);
            (command, fatbin)
        })
        .collect();
    let fatbins = jobs.iter().map(|(_, fatbin)| fatbin.clone()).collect();
    run_all(jobs.into_iter().map(|(command, _)| command).collect(), jobs_max() / threads);
    fatbins
}

/// Whether `object` was made by this very command from files that have not changed since.
fn is_fresh(object: &Path, command: &Command) -> bool {
    let modified = |path: &Path| std::fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let stamp = object.with_extension("command");
    let line = format!("{command:?}");
    let same_command = std::fs::read_to_string(&stamp).is_ok_and(|old| old == line);
    let made = modified(object);
    let dependencies = std::fs::read_to_string(object.with_extension("d")).unwrap_or_default();
    let fresh = same_command
        && made.is_some()
        && dependencies
            .split_whitespace()
            .skip(1)
            .filter(|word| *word != "\\")
            .all(|path| modified(Path::new(path)) < made);
    if !fresh {
        // The stamp is written first and the object removed, so that an interrupted compilation is not taken for one.
        let _ = std::fs::remove_file(object);
        let _ = std::fs::write(stamp, line);
    }
    fresh && !dependencies.is_empty()
}

/// Processes at a time that cargo allows.
fn jobs_max() -> usize {
    env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1).max(1)
}

/// Runs commands, so many at a time.
fn run_all(commands: Vec<Command>, jobs: usize) {
    let queue = std::sync::Mutex::new(commands);
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let Some(command) = queue.lock().expect("no worker panics holding it").pop() else { break };
                    run(command);
                }
            });
        }
    });
}

fn run(mut command: Command) {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?} could not start: {e}"));
    assert!(output.status.success(), "{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
}
