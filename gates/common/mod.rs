//! What every gate is made of: facts with a verdict each, a closing line, an exit code.

/// The facts of one gate run.
pub struct Gate {
    name: &'static str,
    passed: usize,
    failed: usize,
    /// `--full`: the whole matrix instead of the named subset.
    #[allow(dead_code, reason = "not every gate has a longer form")]
    pub full: bool,
}

impl Gate {
    /// Reads `--full` from the command line; cargo's own test arguments are ignored.
    pub fn start(name: &'static str) -> Self {
        Gate { name, passed: 0, failed: 0, full: std::env::args().any(|a| a == "--full") }
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
