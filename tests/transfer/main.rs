//! Import and export, with and without a running relay.

#[path = "../common/mod.rs"]
mod common;

mod database;
mod ends;
mod lines;
mod refusals;
mod round;
mod through;

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Instant;

use common::{Author, LOOK, Launch, WAIT, now};

/// How a command ended, and what it gave.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ran {
    /// Checks code and words.
    #[track_caller]
    fn expect(self, code: i32, words: &[&str]) -> Ran {
        assert_eq!(self.code, Some(code), "{self:#?}");
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is not in {self:#?}");
        }
        self
    }

    /// Checks the summary of an import: accepted, duplicate, superseded, refused.
    #[track_caller]
    fn counts(&self, [accepted, duplicate, superseded, refused]: [usize; 4]) {
        let summary = format!(
            "import: {accepted} accepted, {duplicate} duplicate, {superseded} superseded, \
             {refused} refused ("
        );
        assert!(
            self.stderr.contains(&summary),
            "{summary:?} is not in {self:#?}"
        );
    }

    /// What was said of lines: number and reason.
    fn told(&self) -> Vec<(u64, &str)> {
        let told = self.stderr.lines().filter_map(|line| {
            let (number, reason) = line.strip_prefix("line ")?.split_once(": ")?;
            Some((number.parse().expect("a number"), reason))
        });
        told.collect()
    }
}

/// A command that runs.
struct Running {
    child: Child,
    readers: [std::thread::JoinHandle<String>; 2],
}

impl Running {
    fn start(mut command: Command) -> Running {
        let mut child = command.spawn().expect("the binary can be run");
        let readers = [follow(child.stdout.take()), follow(child.stderr.take())];
        Running { child, readers }
    }

    fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("piped")
    }

    #[track_caller]
    fn wait(mut self) -> Ran {
        let end = Instant::now() + WAIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("our own child") {
                break status;
            }
            if Instant::now() >= end {
                let _ = self.child.kill();
                let _ = self.child.wait();
                let [_, stderr] = self.readers.map(|reader| reader.join());
                panic!("the command goes on: {stderr:?}");
            }
            std::thread::sleep(LOOK);
        };
        let [stdout, stderr] = self.readers.map(|reader| reader.join().expect("a reader"));
        Ran {
            code: status.code(),
            stdout,
            stderr,
        }
    }
}

fn follow(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    })
}

/// `buzz-uring import` on the folder of `launch`, with a pipe to feed it.
fn start_import(launch: &Launch) -> Running {
    let mut command = launch.clone().arg("import").command();
    command.stdin(Stdio::piped());
    Running::start(command)
}

/// `buzz-uring import` with this input.
fn import(launch: &Launch, input: impl AsRef<[u8]>) -> Ran {
    let mut running = start_import(launch);
    let mut stdin = running.stdin();
    let input = input.as_ref().to_vec();
    // It may end before it has read everything.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let ran = running.wait();
    writer.join().expect("a writer");
    ran
}

/// `buzz-uring export` with these arguments.
fn export(launch: &Launch, args: &[&str]) -> Ran {
    let launch = args
        .iter()
        .fold(launch.clone().arg("export"), |launch, arg| launch.arg(arg));
    Running::start(launch.command()).wait()
}

/// As [`export`], which must succeed. Returns what it gave.
#[track_caller]
fn exported(launch: &Launch, args: &[&str]) -> String {
    export(launch, args).expect(0, &["export: "]).stdout
}

/// Events as lines.
fn lines<S: AsRef<str>>(events: &[S]) -> String {
    events
        .iter()
        .map(|event| format!("{}\n", event.as_ref()))
        .collect()
}

/// Notes that nobody else has written.
fn notes(seed: u64, count: u64) -> Vec<String> {
    let author = Author::new(seed);
    (0..count)
        .map(|n| author.json::<&str>(now() - n, 1, &[], &format!("note {n}")))
        .collect()
}
