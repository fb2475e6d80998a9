//! Logs on stderr that can never block serving: lines go through a bounded queue to a thread of their own; when the
//! sink is full or blocked, lines are dropped and counted (reliability row 53).

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, TrySendError, bounded};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::metrics::LOG_LINES_DROPPED_TOTAL;

/// Lines that may wait for the sink.
const LINES_MAX: usize = 4096;

/// Ends the log in order: call [`Guard::flush`] before the process exits.
pub struct Guard {
    queued: Arc<AtomicUsize>,
}

impl Guard {
    /// Waits until the lines so far are written, at most `limit` (the sink may be blocked for ever).
    pub fn flush(&self, limit: Duration) {
        let start = Instant::now();
        while self.queued.load(Ordering::Acquire) > 0 && start.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// How long a line that must be said may take to be taken.
const SAY_WAIT: Duration = Duration::from_millis(500);

/// Writes what must be said whatever the log's filter says, such as why there is no server, from a thread of its own: a
/// sink that takes nothing (a full pipe) must not keep the process from its exit, nor the engine from its start.
pub fn say(mut sink: impl Write + Send + 'static, text: String) {
    let (said, is_said) = bounded::<()>(1);
    let late = text.clone();
    let thread = std::thread::Builder::new().name("say".into()).spawn(move || {
        // A closed sink is no reason for anything.
        let _ = sink.write_all(text.as_bytes()).and_then(|()| sink.flush());
        drop(said);
    });
    match thread {
        Ok(_) => drop(is_said.recv_timeout(SAY_WAIT)),
        Err(_) => eprint!("{late}"),
    }
}

/// Starts logging to stderr with `filter` (checked when the flags were parsed).
pub fn init(filter: &str) -> Guard {
    let (writer, guard) = lossy(io::stderr());
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    // A subscriber that is already there (tests) stays.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(false).try_init();
    guard
}

#[derive(Clone)]
struct Lossy {
    lines: Sender<Vec<u8>>,
    queued: Arc<AtomicUsize>,
}

/// The writer of one sink and the guard over its queue.
fn lossy(mut sink: impl Write + Send + 'static) -> (Lossy, Guard) {
    let (lines, queue) = bounded::<Vec<u8>>(LINES_MAX);
    let queued = Arc::new(AtomicUsize::new(0));
    let counter = queued.clone();
    let thread = std::thread::Builder::new().name("log".into()).spawn(move || {
        for line in queue {
            // A sink that fails (closed stderr) must not end the thread: the queue would fill and count drops instead.
            let _ = sink.write_all(&line);
            counter.fetch_sub(1, Ordering::AcqRel);
        }
    });
    if let Err(e) = thread {
        eprintln!("no log: the log thread cannot start: {e}");
    }
    (Lossy { lines, queued: queued.clone() }, Guard { queued })
}

/// tracing-subscriber formats an event into one buffer and writes it with one call, so a write is a line.
impl Write for Lossy {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.queued.fetch_add(1, Ordering::AcqRel);
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.lines.try_send(line.to_vec()) {
            self.queued.fetch_sub(1, Ordering::AcqRel);
            metrics::counter!(LOG_LINES_DROPPED_TOTAL).increment(1);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lossy {
    type Writer = Lossy;

    fn make_writer(&'a self) -> Lossy {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sink that never takes a byte until the test ends.
    struct Blocked(crossbeam_channel::Receiver<()>);

    impl Write for Blocked {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(buf.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_blocked_sink_never_blocks_the_writer() {
        let (release, blocked) = bounded::<()>(0);
        let (mut writer, guard) = lossy(Blocked(blocked));
        for _ in 0..LINES_MAX * 2 {
            writer.write_all(b"line\n").unwrap();
        }
        assert!((LINES_MAX..=LINES_MAX + 1).contains(&guard.queued.load(Ordering::Acquire)));
        drop(release);
        guard.flush(Duration::from_secs(10));
        assert_eq!(guard.queued.load(Ordering::Acquire), 0);
    }
}
