//! What every gate is made of: facts with a verdict each, a closing line, an exit code; and where it runs.
#![allow(dead_code, reason = "no gate uses everything of this module")]

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use gemma4_serve::device::{DeviceChoice, DeviceKind};
use gemma4_serve::engine::start::load_device;

/// The facts of one gate run.
pub struct Gate {
    name: &'static str,
    passed: usize,
    failed: usize,
    /// `--full`: the whole matrix instead of the named subset.
    pub full: bool,
}

impl Gate {
    /// Reads `--full` from the command line; cargo's own test arguments are ignored.
    pub fn start(name: &'static str) -> Self {
        Gate { name, passed: 0, failed: 0, full: std::env::args().any(|a| a == "--full") }
    }

    /// Loads the device of `--device` (as the server's flag), by default the software device. A gate on a GPU checks
    /// what can be seen there: no planted images, no counters or seeds of the device.
    pub fn device() -> DeviceKind {
        let choice = argument("--device").map_or(DeviceChoice::Soft, |text| text.parse().expect("--device"));
        load_device(choice).expect("the device loads")
    }

    /// A folder of `tests/data/reference`, below `--root` where the gate was carried to another machine.
    pub fn reference(name: &str) -> PathBuf {
        let root = argument("--root").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").to_owned());
        Path::new(&root).join("tests/data/reference").join(name)
    }

    /// Records one fact and prints it.
    pub fn fact(&mut self, holds: bool, text: &str) {
        if holds {
            self.passed += 1;
        } else {
            self.failed += 1;
        }
        println!("{} {text}", if holds { "ok  " } else { "FAIL" });
    }

    /// The closing line; ends the process.
    pub fn finish(self) -> ! {
        println!("{}: {} passed, {} failed", self.name, self.passed, self.failed);
        let nothing_ran = self.passed + self.failed == 0;
        std::process::exit(i32::from(self.failed > 0 || nothing_ran));
    }
}

/// The seed of `--seed`, or else a new one; printed, so that it can be given again.
pub fn seed() -> u64 {
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let seed = argument("--seed").map_or_else(clock, |text| text.parse().expect("--seed: a number"));
    println!("seed {seed}");
    seed
}

/// The word behind a flag of the command line.
pub fn argument(flag: &str) -> Option<String> {
    let mut words = std::env::args().skip_while(|word| word != flag);
    words.nth(1)
}
