//! The relay as a child process.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::confine::{Confine, confine};
use super::{LOOK, WAIT, inherit, raw};

/// How to start a relay. Without anything else: free ports on the loopback address, two shards, no
/// grace before it stops, a new folder.
#[derive(Clone)]
pub struct Launch {
    args: Vec<String>,
    env: Vec<(String, String)>,
    confine: Vec<Confine>,
    sockets: Vec<(String, Arc<TcpListener>)>,
    folder: Arc<Folder>,
}

/// A data folder: a new one that goes with its last user, or a given one.
enum Folder {
    New(TempDir),
    Given(PathBuf),
}

impl Folder {
    fn path(&self) -> PathBuf {
        match self {
            // Below the temporary folder, so that the relay makes it.
            Folder::New(dir) => dir.path().join("data"),
            Folder::Given(path) => path.clone(),
        }
    }
}

impl Default for Launch {
    fn default() -> Launch {
        Launch::new()
    }
}

impl Launch {
    pub fn new() -> Launch {
        let dir = tempfile::Builder::new()
            .prefix("buzz-uring-test-")
            .tempdir();
        Launch {
            args: Vec::new(),
            env: Vec::new(),
            confine: Vec::new(),
            sockets: Vec::new(),
            folder: Arc::new(Folder::New(dir.expect("a temporary folder"))),
        }
        .set("BUZZ_BIND_ADDR", "127.0.0.1:0")
        .set("BUZZ_HEALTH_BIND", "127.0.0.1")
        .set("BUZZ_HEALTH_PORT", "0")
        .set("BUZZ_METRICS_BIND", "127.0.0.1")
        .set("BUZZ_METRICS_PORT", "0")
        .set("BUZZ_SHARDS", "2")
        .set("BUZZ_DRAIN_GRACE_MS", "0")
    }

    /// Sets an environment variable; the last one of a name counts.
    pub fn set(mut self, name: &str, value: impl ToString) -> Launch {
        self.env.push((name.to_owned(), value.to_string()));
        self
    }

    /// Takes an environment variable away.
    pub fn unset(mut self, name: &str) -> Launch {
        self.env.retain(|(other, _)| other != name);
        self
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: &str) -> Launch {
        self.args.push(argument.to_owned());
        self
    }

    /// Takes something away from the process.
    pub fn confine(mut self, confine: Confine) -> Launch {
        self.confine.push(confine);
        self
    }

    /// Gives the process this socket, under a name, as a service manager does.
    pub fn inherit(mut self, name: &str, socket: &Arc<TcpListener>) -> Launch {
        self.sockets.push((name.to_owned(), Arc::clone(socket)));
        self
    }

    /// Uses this folder, which is left as it is.
    pub fn folder(mut self, path: impl Into<PathBuf>) -> Launch {
        self.folder = Arc::new(Folder::Given(path.into()));
        self
    }

    /// The data folder.
    pub fn data_dir(&self) -> PathBuf {
        self.folder.path()
    }

    /// Starts the process and does not wait for anything.
    pub fn spawn(&self) -> Process {
        let (mut child, output) = (self.child(), Output::default());
        let readers = [
            output.follow("stdout", child.stdout.take().expect("piped")),
            output.follow("stderr", child.stderr.take().expect("piped")),
        ];
        Process {
            child,
            output,
            readers: Some(readers),
            folder: Arc::clone(&self.folder),
        }
    }

    /// As [`Launch::spawn`], and leaves it alone with its output: nobody reads the pipe. Dropping
    /// what this gives besides breaks it.
    pub fn spawn_unheard(&self) -> (Process, ChildStderr) {
        let mut child = self.child();
        let pipe = child.stderr.take().expect("piped");
        let process = Process {
            child,
            output: Output::default(),
            readers: None,
            folder: Arc::clone(&self.folder),
        };
        (process, pipe)
    }

    fn child(&self) -> Child {
        let mut command = self.command();
        command.spawn().expect("the relay's binary can be run")
    }

    /// The process before it is started: nothing to read, both outputs piped.
    pub fn command(&self) -> Command {
        let program = env!("CARGO_BIN_EXE_buzz-uring");
        let mut command = match self.sockets.is_empty() {
            true => Command::new(program),
            false => inherit::command(program, &self.sockets),
        };
        let given: Vec<_> = command
            .get_envs()
            .map(|(name, value)| (name.to_owned(), value.map(OsStr::to_owned)))
            .collect();
        command.args(&self.args).env_clear();
        for (name, value) in given {
            command.env(name, value.expect("set, not taken away"));
        }
        command
            .env("BUZZ_DATA_DIR", self.data_dir())
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        confine(&mut command, self.confine.clone());
        command
    }

    /// Starts the relay and waits until it serves.
    pub fn start(&self) -> Relay {
        let mut process = self.spawn();
        match process.wait_ready() {
            Some(line) => Relay::new(process, line),
            None => panic!("the relay ended before it served:\n{}", process.output()),
        }
    }

    /// Runs the process to its end, which must come by itself.
    pub fn run(&self) -> Exit {
        let mut process = self.spawn();
        let Some(exit) = process.wait_exit(WAIT) else {
            panic!("the process goes on:\n{}", process.output());
        };
        exit
    }
}

/// Everything a process has said, by line.
#[derive(Clone, Default)]
struct Output(Arc<Mutex<Vec<(&'static str, String)>>>);

impl Output {
    fn follow(&self, name: &'static str, pipe: impl Read + Send + 'static) -> JoinHandle<()> {
        let lines = Arc::clone(&self.0);
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines() {
                let Ok(line) = line else { return };
                lines.lock().unwrap().push((name, line));
            }
        })
    }

    fn find<T>(&self, mut wanted: impl FnMut(&str) -> Option<T>) -> Option<T> {
        let lines = self.0.lock().unwrap();
        lines.iter().find_map(|(_, line)| wanted(line))
    }

    fn text(&self, of: Option<&str>) -> String {
        let lines = self.0.lock().unwrap();
        lines
            .iter()
            .filter(|(name, _)| of.is_none_or(|of| of == *name))
            .map(|(_, line)| format!("{line}\n"))
            .collect()
    }
}

/// A started process. It is killed when this is dropped, and its output shown if a test fails.
pub struct Process {
    child: Child,
    output: Output,
    readers: Option<[JoinHandle<()>; 2]>,
    folder: Arc<Folder>,
}

/// How a process ended, and what it said.
#[derive(Debug)]
pub struct Exit {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Exit {
    /// The exit code; a process that a signal ended has none.
    #[track_caller]
    pub fn code(&self) -> i32 {
        self.status
            .code()
            .unwrap_or_else(|| panic!("ended by a signal: {self:#?}"))
    }

    /// The signal that ended it.
    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }

    /// Checks code and standard error.
    #[track_caller]
    pub fn expect(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code(), code, "{self:#?}");
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is not in {self:#?}");
        }
    }
}

impl Process {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: Signal) {
        // It may have ended by itself already.
        let _ = kill_process(self.pid(), signal);
    }

    /// All that was said so far.
    pub fn output(&self) -> String {
        self.output.text(None)
    }

    /// Waits for the start-up line; `None` when the process ends before.
    pub fn wait_ready(&mut self) -> Option<Value> {
        let end = Instant::now() + WAIT;
        loop {
            if let Some(line) = self.output.find(start_up_line) {
                return Some(line);
            }
            if self.child.try_wait().expect("our own child").is_some() {
                return None;
            }
            assert!(Instant::now() < end, "no start-up line:\n{}", self.output());
            std::thread::sleep(LOOK);
        }
    }

    /// Waits for the end; `None` when it does not come in time.
    pub fn wait_exit(&mut self, wait: Duration) -> Option<Exit> {
        let end = Instant::now() + wait;
        loop {
            if let Some(status) = self.child.try_wait().expect("our own child") {
                return Some(self.exit(status));
            }
            if Instant::now() >= end {
                return None;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Kills it, at once and without a warning.
    pub fn kill(&mut self) -> Exit {
        let _ = self.child.kill();
        let status = self.child.wait().expect("our own child");
        self.exit(status)
    }

    fn exit(&mut self, status: ExitStatus) -> Exit {
        for reader in self.readers.take().into_iter().flatten() {
            let _ = reader.join();
        }
        Exit {
            status,
            stdout: self.output.text(Some("stdout")),
            stderr: self.output.text(Some("stderr")),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let text = self.output.text(None);
            let tail: Vec<&str> = text.lines().rev().take(40).collect();
            let tail: Vec<&str> = tail.into_iter().rev().collect();
            eprintln!("--- the relay's last lines:\n{}\n---", tail.join("\n"));
        }
    }
}

/// A relay that serves.
pub struct Relay {
    process: Process,
    /// The start-up line.
    pub line: Value,
    /// Where clients connect.
    pub address: SocketAddr,
    /// The health server.
    pub health: SocketAddr,
    /// The metrics server.
    pub metrics: SocketAddr,
}

impl Relay {
    pub fn new(process: Process, line: Value) -> Relay {
        let address = |name: &str| {
            let url = line[name].as_str();
            let url = url.unwrap_or_else(|| panic!("{name} is not in {line}"));
            let address = url
                .split('/')
                .nth(2)
                .and_then(|address| address.parse().ok());
            address.unwrap_or_else(|| panic!("no address in {url}: {line}"))
        };
        Relay {
            address: address("url"),
            health: address("health"),
            metrics: address("metrics"),
            process,
            line,
        }
    }

    /// The URL for clients.
    pub fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// A file of the process below /proc.
    pub fn proc_file(&self, name: &str) -> String {
        let pid = self.process.child.id();
        std::fs::read_to_string(format!("/proc/{pid}/{name}")).expect("the process lives")
    }

    /// Its process id.
    pub fn process_id(&self) -> u32 {
        self.process.child.id()
    }

    /// How many of its descriptors are listening sockets, TCP and Unix.
    pub fn listening_descriptors(&self) -> usize {
        let tcp = self.proc_file("net/tcp");
        let unix = self.proc_file("net/unix");
        // Columns: state and inode of each; 0A is LISTEN, flag 10000 an accepting Unix socket.
        let column = |line: &str, at: usize| line.split_whitespace().nth(at).map(str::to_owned);
        let tcp = tcp
            .lines()
            .filter(|line| column(line, 3).as_deref() == Some("0A"));
        let unix = unix
            .lines()
            .filter(|line| column(line, 3).as_deref() == Some("00010000"));
        let inodes: Vec<String> = tcp
            .filter_map(|line| column(line, 9))
            .chain(unix.filter_map(|line| column(line, 6)))
            .map(|inode| format!("socket:[{inode}]"))
            .collect();
        let folder = format!("/proc/{}/fd", self.process_id());
        let entries = std::fs::read_dir(folder)
            .expect("the process lives")
            .flatten();
        let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        let links = links.map(|link| link.to_string_lossy().into_owned());
        links.filter(|link| inodes.contains(link)).count()
    }

    /// Descriptors that the process holds.
    pub fn descriptors(&self) -> usize {
        let pid = self.process.child.id();
        let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the process lives");
        entries.count()
    }

    pub fn kill(&mut self) -> Exit {
        self.process.kill()
    }

    pub fn output(&self) -> String {
        self.process.output()
    }

    /// Its data folder.
    pub fn data_dir(&self) -> PathBuf {
        self.process.folder.path()
    }

    /// Waits for its end, for this long.
    #[track_caller]
    pub fn wait_exit(&mut self, wait: Duration) -> Exit {
        let exit = self.process.wait_exit(wait);
        exit.unwrap_or_else(|| panic!("not ended after {wait:?}:\n{}", self.process.output()))
    }

    /// SIGTERM, and its end.
    #[track_caller]
    pub fn stop(mut self) -> Exit {
        self.signal(Signal::TERM);
        self.wait_exit(WAIT)
    }

    /// `/_status`.
    pub fn status(&self) -> Value {
        raw::get(self.health, "/_status", &[]).json()
    }

    /// The text of `/metrics`.
    pub fn metrics_text(&self) -> String {
        raw::get(self.metrics, "/metrics", &[]).text()
    }

    /// The sum of a series over the label sets that contain all of `labels` (`reason="lost"`).
    /// `None` when there is none.
    pub fn metric(&self, name: &str, labels: &[&str]) -> Option<f64> {
        metric_in(&self.metrics_text(), name, labels)
    }

    /// Waits until a series has a value.
    #[track_caller]
    pub fn await_metric(&self, name: &str, labels: &[&str], value: impl Fn(f64) -> bool) {
        let mut last = None;
        let end = Instant::now() + WAIT;
        while !last.is_some_and(&value) {
            assert!(Instant::now() < end, "{name}{labels:?} stays {last:?}");
            std::thread::sleep(LOOK);
            last = self.metric(name, labels);
        }
    }
}

/// See [`Relay::metric`].
pub fn metric_in(text: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let values = text.lines().filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let (found, set) = series.split_once('{').unwrap_or((series, ""));
        let all = labels.iter().all(|label| set.contains(label));
        (found == name && all).then(|| value.parse::<f64>().expect("a number"))
    });
    values.reduce(|sum, value| sum + value)
}

/// A file below a data folder, wherever the store keeps it.
pub fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else {
            files.push(path);
        }
    }
    files
}

/// The line that says that the relay serves, and where.
fn start_up_line(line: &str) -> Option<Value> {
    let line: Value = serde_json::from_str(line).ok()?;
    line.get("url").is_some().then_some(line)
}
