//! The real binary as a child process on loopback: started on a free port, read through its pipes, killed by its id.
//!
//! Nothing here outlives its test: every wait is bounded, and dropping a [`Server`] kills and reaps the process.
#![allow(dead_code, unused_imports)] // Each test file uses its part.

#[path = "../server/support/client.rs"]
pub mod client;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use client::{Client, Reply, Stream};
pub use rustix::process::Signal;

/// No single wait is longer. A start takes about half a second on an idle machine.
pub const LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);

/// A checkpoint of `tests/data/reference`.
pub fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/reference").join(name)
}

/// How to start the program.
pub struct Setup {
    command: Command,
}

impl Setup {
    /// The server on the software device, on a free port.
    pub fn serve(flags: &[&str]) -> Self {
        Self::bare(&[&["--device", "soft", "--host", "127.0.0.1", "--port", "0"], flags].concat())
    }

    /// The program with these flags and nothing else.
    pub fn bare(flags: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gemma4-serve"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("GEMMA4_") {
                command.env_remove(name);
            }
        }
        command.args(flags).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Setup { command }
    }

    pub fn model(mut self, folder: &Path) -> Self {
        self.command.arg("--model").arg(folder);
        self
    }

    /// An option of the software device (`csrc/soft/options.cpp`, `faults.cpp`).
    pub fn soft(mut self, option: &str, value: &str) -> Self {
        self.command.env(format!("GEMMA4_SOFT_{option}"), value);
        self
    }

    pub fn env(mut self, name: &str, value: &Path) -> Self {
        self.command.env(name, value);
        self
    }

    /// Starts it with a stderr that nobody reads; its exit code, which must come within the limit.
    pub fn exit_unread(mut self, stderr: Stdio) -> Option<i32> {
        self.command.stdout(Stdio::null()).stderr(stderr);
        let mut child = self.command.spawn().expect("the binary starts");
        let started = Instant::now();
        loop {
            match child.try_wait().expect("our child") {
                Some(status) => return status.code(),
                None if started.elapsed() < LIMIT => std::thread::sleep(POLL),
                None => {
                    let _ = child.kill();
                    let _ = child.wait();
                    panic!("it did not end");
                }
            }
        }
    }

    pub fn spawn(mut self) -> Process {
        let mut child = self.command.spawn().expect("the binary starts");
        let stdout = Pipe::read(child.stdout.take().expect("a pipe"));
        let stderr = Pipe::read(child.stderr.take().expect("a pipe"));
        Process { child, stdout, stderr }
    }

    /// Waits until the socket is bound, which is before anything is loaded.
    pub fn bound(self) -> Server {
        let process = self.spawn();
        let address = process.address();
        Server { process, address, client: Client { address } }
    }

    /// Waits until the server is ready.
    pub fn start(self) -> Server {
        let server = self.bound();
        wait("the server is ready", || {
            assert!(server.process.alive(), "the server ended while loading:\n{}", server.process.stderr.text());
            server.ready() == Some(200)
        });
        server
    }
}

/// Waits for a fact, up to the limit.
pub fn wait(what: &str, mut fact: impl FnMut() -> bool) {
    let start = Instant::now();
    while !fact() {
        assert!(start.elapsed() < LIMIT, "never came true: {what}");
        std::thread::sleep(POLL);
    }
}

/// As [`wait`], with the runtime's other tasks going on.
pub async fn until(what: &str, mut fact: impl FnMut() -> bool) {
    let start = Instant::now();
    while !fact() {
        assert!(start.elapsed() < LIMIT, "never came true: {what}");
        tokio::time::sleep(POLL).await;
    }
}

/// What a process wrote to one of its pipes so far.
pub struct Pipe {
    text: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Pipe {
    fn read(from: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(String::new()));
        let all = text.clone();
        let reader = std::thread::spawn(move || {
            let mut from = BufReader::new(from);
            let mut line = Vec::new();
            while from.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                all.lock().expect("a reader").push_str(&String::from_utf8_lossy(&line));
                line.clear();
            }
        });
        Pipe { text, reader: Some(reader) }
    }

    pub fn text(&self) -> String {
        self.text.lock().expect("a reader").clone()
    }
}

/// A started program. Dropping it kills it.
pub struct Process {
    child: Child,
    pub stdout: Pipe,
    pub stderr: Pipe,
}

/// How a program ended, with all it wrote.
#[derive(Debug)]
pub struct Ended {
    /// None: by a signal.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Process {
    /// To this process and no other: it is ours and not yet reaped, so the id cannot have been given away.
    pub fn signal(&self, signal: Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("a live child");
    }

    pub fn alive(&self) -> bool {
        let pid = rustix::process::Pid::from_child(&self.child);
        let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        // After the name in brackets; Z: ended, not yet reaped.
        state.is_ok_and(|s| s.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z')))
    }

    /// The exit; fails the test when it takes longer than the limit.
    pub fn exit(mut self) -> Ended {
        let mut status = None;
        wait("the process ended", || {
            status = self.child.try_wait().expect("our child");
            status.is_some()
        });
        for pipe in [&mut self.stdout, &mut self.stderr] {
            pipe.reader.take().expect("one join").join().expect("a reader");
        }
        let code = status.expect("an exit").code();
        Ended { code, stdout: self.stdout.text(), stderr: self.stderr.text() }
    }

    fn address(&self) -> SocketAddr {
        let mut address = None;
        wait("the address is printed", || {
            let text = self.stdout.text();
            address = text.split("listening on http://").nth(1).and_then(|s| s.split_whitespace().next()?.parse().ok());
            assert!(address.is_some() || self.alive(), "no address: {text}{}", self.stderr.text());
            address.is_some()
        });
        address.expect("an address")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both do nothing when it has been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server whose socket is bound.
pub struct Server {
    pub process: Process,
    pub address: SocketAddr,
    pub client: Client,
}

impl Server {
    /// Status of the readiness probe; none when nobody answers.
    pub fn ready(&self) -> Option<u16> {
        request(self.address, "GET", "/health/ready", "").ok().map(|reply| reply.status)
    }

    /// Value of a metric, labels included in the name; fails when it is missing.
    pub fn metric(&self, name: &str) -> u64 {
        metric(&self.metrics(), name)
    }

    pub fn metrics(&self) -> String {
        request(self.address, "GET", "/metrics", "").expect("metrics").text
    }

    /// A counter of the software device, as of the last step or of idleness.
    pub fn soft(&self, counter: &str) -> u64 {
        self.metric(&format!("gemma4_soft_device{{counter=\"{counter}\"}}"))
    }

    /// Free pages of both families.
    pub fn pages_free(&self) -> [u64; 2] {
        let metrics = self.metrics();
        ["sliding", "global"].map(|family| metric(&metrics, &format!("gemma4_kv_pages_free{{family=\"{family}\"}}")))
    }

    pub fn exit(self) -> Ended {
        self.process.exit()
    }
}

pub fn metric(metrics: &str, name: &str) -> u64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = line.unwrap_or_else(|| panic!("no metric {name} in\n{metrics}"));
    value.parse::<f64>().expect("a number") as u64
}

/// An answer read to the end of its connection, whatever that was.
#[derive(Debug)]
pub struct RawReply {
    pub status: u16,
    /// The body as it came: a stream's chunk sizes are still between its events.
    pub text: String,
}

impl RawReply {
    /// Data of the server-sent events.
    pub fn events(&self) -> Vec<&str> {
        self.text.lines().filter_map(|line| line.strip_prefix("data: ")).collect()
    }
}

/// One request on a connection of its own, blocking; an error when nobody answers. For servers that may die meanwhile.
pub fn request(address: SocketAddr, method: &str, path: &str, body: &str) -> std::io::Result<RawReply> {
    let mut socket = TcpStream::connect_timeout(&address, LIMIT)?;
    socket.set_read_timeout(Some(LIMIT))?;
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    socket.write_all(format!("{head}{body}").as_bytes())?;
    let mut bytes = Vec::new();
    let end = socket.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    match (status, text.split_once("\r\n\r\n"), end) {
        (Some(status), Some((_, body)), _) => Ok(RawReply { status, text: body.to_owned() }),
        (_, _, Err(e)) => Err(e),
        _ => Err(std::io::ErrorKind::UnexpectedEof.into()),
    }
}
