//! Log lines: JSON on standard error when a program reads it, human ones on a terminal.
//!
//! A shard must never wait for whoever reads our standard error, so lines go through a bounded
//! queue to a thread that writes them, [`LOG_GATHER`](limits::LOG_GATHER) later at most; a line that
//! finds the queue full is dropped and counted.
//!
//! Only lines of this crate (and warnings of others) are written. The LaunchDarkly SDK and its HTTP
//! client speak through the `log` crate, which is left without a logger on purpose: their lines may
//! hold the key or the URL. What they would tell, the flag provider tells in its own words.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::Thread;
use std::time::Duration;

use metrics::Counter;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::{Registry, fmt, reload};

use crate::limits;
use crate::metrics::series;

/// Target of the access log: logins and connection ends.
pub const ACCESS: &str = "access";

/// How lines look.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Form {
    /// One JSON object a line.
    Json,
    /// For eyes.
    Human,
}

impl Form {
    /// Human on a terminal, JSON otherwise.
    pub fn of_stderr() -> Form {
        if io::stderr().is_terminal() {
            Form::Human
        } else {
            Form::Json
        }
    }
}

/// Changes the level while the process runs, and flushes at its end.
#[derive(Clone, Debug)]
pub struct Logs {
    filter: reload::Handle<Targets, Registry>,
    queue: Queue,
}

/// Puts the subscriber in place for the whole process, and a hook that logs panics.
///
/// # Errors
///
/// When a subscriber is in place already, or the log thread cannot start.
pub fn install(level: LevelFilter, form: Form) -> io::Result<Logs> {
    let queue = Queue::start(io::stderr())?;
    let (subscriber, filter) = subscriber(queue.clone(), level, form);
    // Not `SubscriberInitExt::init`: that also bridges the `log` crate (see the head of this file).
    tracing::subscriber::set_global_default(subscriber).map_err(io::Error::other)?;
    std::panic::set_hook(Box::new(|panic| {
        let location = panic
            .location()
            .map(ToString::to_string)
            .unwrap_or_default();
        let message = panic.payload_as_str().unwrap_or("not a text");
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("unnamed");
        tracing::error!(location, thread, "panic: {message}");
    }));
    Ok(Logs { filter, queue })
}

impl Logs {
    /// Sets the least severe level that is written, from now on.
    pub fn set_level(&self, level: LevelFilter) {
        // It fails only when the subscriber is gone, and the global one never goes.
        let _ = self.filter.reload(targets(level));
    }

    /// Waits until the lines so far are written, for a bounded time. Call it before the exit.
    pub fn flush(&self) {
        self.queue
            .flush(Duration::from_millis(limits::LOG_FLUSH_MS_MAX));
    }
}

fn subscriber<W>(
    writer: W,
    level: LevelFilter,
    form: Form,
) -> (
    impl Subscriber + Send + Sync,
    reload::Handle<Targets, Registry>,
)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(targets(level));
    let lines = fmt::layer().with_writer(writer);
    let lines = match form {
        Form::Json => lines
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .boxed(),
        Form::Human => lines.boxed(),
    };
    (
        tracing_subscriber::registry().with(lines.with_filter(filter)),
        handle,
    )
}

/// Our own lines at `level`, warnings of others, and nothing of what speaks to LaunchDarkly.
fn targets(level: LevelFilter) -> Targets {
    const SILENT: &[&str] = &[
        "eventsource_client",
        "h2",
        "hyper",
        "hyper_rustls",
        "hyper_util",
        "launchdarkly_sdk_transport",
        "launchdarkly_server_sdk",
        "log",
        "rustls",
    ];
    let silent = SILENT.iter().map(|target| (*target, LevelFilter::OFF));
    Targets::new()
        .with_default(level.min(LevelFilter::WARN))
        .with_target("buzz_uring", level)
        .with_target(ACCESS, level)
        .with_targets(silent)
}

enum Item {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

/// The way to the log thread.
#[derive(Clone, Debug)]
struct Queue {
    items: SyncSender<Item>,
    thread: Thread,
}

impl Queue {
    fn start(out: impl Write + Send + 'static) -> io::Result<Queue> {
        let (items, receiver) = sync_channel(limits::LOG_LINES_WAITING_MAX);
        let thread = std::thread::Builder::new().name("logs".to_owned());
        let thread = thread.spawn(move || write_lines(&receiver, out))?;
        let thread = thread.thread().clone();
        Ok(Queue { items, thread })
    }

    fn push(&self, line: Vec<u8>, is_urgent: bool) {
        if let Err(TrySendError::Full(_)) = self.items.try_send(Item::Line(line)) {
            dropped().increment(1);
        }
        if is_urgent {
            self.thread.unpark();
        }
    }

    fn flush(&self, wait: Duration) {
        let (sender, done) = sync_channel(1);
        // A full queue is not waited for: its reader is stuck, and the exit must not be.
        if self.items.try_send(Item::Flush(sender)).is_ok() {
            self.thread.unpark();
            let _ = done.recv_timeout(wait);
        }
    }
}

/// Writes what is queued, as much as there is at once. Then it looks away for a moment, unless
/// something is urgent: being woken for every line of an access log costs a shard as much as the
/// connection that the line is about.
fn write_lines(queue: &Receiver<Item>, mut out: impl Write) {
    let mut block = Vec::new();
    // Nobody is left to tell that standard error is broken.
    let mut write = |block: &mut Vec<u8>| {
        let _ = out.write_all(block).and_then(|()| out.flush());
        block.clear();
    };
    while let Ok(first) = queue.recv() {
        for item in std::iter::once(first).chain(queue.try_iter()) {
            match item {
                Item::Line(line) => block.extend_from_slice(&line),
                Item::Flush(done) => {
                    write(&mut block);
                    let _ = done.try_send(());
                }
            }
            if block.len() >= limits::LOG_BLOCK_BYTES_MAX {
                write(&mut block);
            }
        }
        write(&mut block);
        std::thread::park_timeout(limits::LOG_GATHER);
    }
}

fn dropped() -> &'static Counter {
    static DROPPED: OnceLock<Counter> = OnceLock::new();
    DROPPED.get_or_init(|| series::LOG_LINES_DROPPED.counter(&[]))
}

impl<'a> MakeWriter<'a> for Queue {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line {
            queue: self,
            bytes: Vec::new(),
            is_urgent: false,
        }
    }

    fn make_writer_for(&'a self, about: &Metadata<'_>) -> Line<'a> {
        // Who ends the process says why, and does not wait for this line.
        let is_urgent = *about.level() <= Level::WARN;
        let mut line = self.make_writer();
        line.is_urgent = is_urgent;
        line
    }
}

/// Collects one line and queues it when the formatter is done with it.
struct Line<'a> {
    queue: &'a Queue,
    bytes: Vec<u8>,
    is_urgent: bool,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        if !self.bytes.is_empty() {
            let line = std::mem::take(&mut self.bytes);
            self.queue.push(line, self.is_urgent);
        }
    }
}

/// Where tests read what was logged.
#[cfg(test)]
pub(crate) mod capture {
    use super::{Form, LevelFilter, subscriber};
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex, PoisonError};

    /// A writer that keeps what it is given.
    #[derive(Clone, Default)]
    pub(crate) struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Captured {
        pub(crate) fn text(&self) -> String {
            let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            String::from_utf8(bytes.clone()).unwrap()
        }
    }

    impl Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Logs of this thread go to the returned text until the guard is dropped.
    pub(crate) fn logs(level: LevelFilter) -> (Captured, tracing::subscriber::DefaultGuard) {
        let captured = Captured::default();
        let writer = captured.clone();
        let (subscriber, _) = subscriber(move || writer.clone(), level, Form::Json);
        (captured, tracing::subscriber::set_default(subscriber))
    }
}

#[cfg(test)]
mod tests {
    use super::capture::Captured;
    use super::*;
    use std::sync::{Arc, Barrier, Mutex};

    #[test]
    fn json_lines_are_flat_objects() {
        let (captured, _guard) = capture::logs(LevelFilter::INFO);
        tracing::info!(gate = "auth", new = 4, "limit changed");
        tracing::info!(target: ACCESS, outcome = "success", "auth");
        tracing::debug!("not at this level");
        let text = captured.text();
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert_eq!(lines[0]["message"], "limit changed");
        assert_eq!(lines[0]["gate"], "auth");
        assert_eq!(lines[0]["new"], 4);
        assert_eq!(lines[1]["target"], "access");
    }

    #[test]
    fn others_are_heard_only_when_they_warn_and_the_sdk_never() {
        let (captured, _guard) = capture::logs(LevelFilter::TRACE);
        tracing::trace!("ours");
        tracing::info!(target: "heed", "chatter");
        tracing::warn!(target: "heed", "worth knowing");
        tracing::error!(target: "launchdarkly_server_sdk::client", "hush");
        tracing::error!(target: "hyper_util::client", "hush");
        let text = captured.text();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(
            text.contains("ours") && text.contains("worth knowing"),
            "{text}"
        );
    }

    #[test]
    fn the_level_changes_while_running() {
        let captured = Captured::default();
        let queue = Queue::start(captured.clone()).unwrap();
        let (subscriber, filter) = subscriber(queue.clone(), LevelFilter::INFO, Form::Human);
        let logs = Logs { filter, queue };
        tracing::subscriber::with_default(subscriber, || {
            tracing::debug!("early");
            logs.set_level(LevelFilter::DEBUG);
            tracing::debug!("later");
        });
        logs.flush();
        let text = captured.text();
        assert!(!text.contains("early") && text.contains("later"), "{text}");
    }

    /// Blocks in its first write until it is let go.
    struct Stuck(Arc<Barrier>, Captured);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.1.text().is_empty() {
                self.0.wait();
                self.0.wait();
            }
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stuck_reader_costs_lines_and_no_time() {
        let (barrier, captured) = (Arc::new(Barrier::new(2)), Captured::default());
        let queue = Queue::start(Stuck(Arc::clone(&barrier), captured.clone())).unwrap();
        queue.push(b"x\n".to_vec(), false);
        barrier.wait(); // this one is in the writer's hands
        for _ in 0..limits::LOG_LINES_WAITING_MAX + 100 {
            queue.push(b"x\n".to_vec(), false);
        }
        queue.flush(Duration::from_secs(5)); // returns at once: the queue is full
        barrier.wait();
        let kept = limits::LOG_LINES_WAITING_MAX + 1;
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while captured.text().lines().count() < kept {
            assert!(std::time::Instant::now() < deadline, "lines were lost");
            std::thread::yield_now();
        }
        queue.flush(Duration::from_secs(5));
        assert_eq!(captured.text().lines().count(), kept);
    }

    #[test]
    fn lines_of_a_moment_are_written_together_and_in_order() {
        /// Keeps each write by itself.
        struct Writes(Arc<Mutex<Vec<String>>>);
        impl Write for Writes {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let text = String::from_utf8(bytes.to_vec()).unwrap();
                self.0.lock().unwrap().push(text);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        let writes = Arc::new(Mutex::new(Vec::new()));
        let (items, queue) = sync_channel(100);
        let long = vec![b'y'; limits::LOG_BLOCK_BYTES_MAX];
        for line in [b"a\n", b"b\n", &long[..], b"c\n", b"d\n"] {
            items.send(Item::Line(line.to_vec())).unwrap();
        }
        drop(items);
        write_lines(&queue, Writes(writes.clone()));
        let long = String::from_utf8(long).unwrap();
        assert_eq!(
            *writes.lock().unwrap(),
            [format!("a\nb\n{long}"), "c\nd\n".to_owned()]
        );
    }
}
