//! Ends that come too early: of the relay, of the command, of its input, of its output.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{ChildStdin, Stdio};
use std::thread::JoinHandle;

use rustix::process::Signal;

use crate::common::{Author, Launch, Relay, WAIT, now};
use crate::{Running, export, exported, import, lines, notes, start_import};

/// Feeds an import until it takes no more. Gives what was fed.
fn feed(mut stdin: ChildStdin) -> JoinHandle<Vec<String>> {
    std::thread::spawn(move || {
        let author = Author::new(7);
        let mut fed = Vec::new();
        loop {
            let text = format!("note {}", fed.len());
            let event = author.json::<&str>(now(), 1, &[], &text);
            if writeln!(stdin, "{event}").is_err() {
                return fed;
            }
            fed.push(event);
        }
    })
}

/// An import that runs and has stored some of what it is fed.
fn under_way(launch: &Launch, relay: &Relay) -> (Running, JoinHandle<Vec<String>>) {
    let mut running = start_import(launch);
    let fed = feed(running.stdin());
    relay.await_metric("buzz_import_events_total", &["stored"], |n| n > 200.0);
    (running, fed)
}

/// The accepted count of a summary.
fn accepted(stderr: &str) -> usize {
    let summary = stderr.lines().find_map(|line| {
        let (counts, _) = line.strip_prefix("import: ")?.split_once(" accepted, ")?;
        counts.parse().ok()
    });
    summary.unwrap_or_else(|| panic!("no summary in {stderr:?}"))
}

#[test]
fn a_relay_that_stops_says_so_and_keeps_what_was_accepted() {
    let launch = Launch::new();
    let mut relay = launch.start();
    let (running, fed) = under_way(&launch, &relay);
    relay.signal(Signal::TERM);
    let ran = running.wait().expect(
        1,
        &[
            "import: ended before its input: the relay is stopping",
            "what is stored stays",
        ],
    );
    relay.wait_exit(WAIT).expect(0, &["an import has ended"]);
    let fed = fed.join().expect("a feeder");
    let stored = exported(&launch, &[]);
    let stored: Vec<&str> = stored.lines().collect();
    assert!(stored.len() >= accepted(&ran.stderr), "{ran:#?}");
    // In the order of the lines, without a gap.
    assert!(stored.iter().zip(&fed).all(|(stored, fed)| stored == fed));
    let again = import(&launch, lines(&fed)).expect(0, &[]);
    again.counts([fed.len() - stored.len(), stored.len(), 0, 0]);
}

#[test]
fn a_relay_that_is_killed_ends_the_import_and_keeps_what_was_accepted() {
    let launch = Launch::new();
    let mut relay = launch.start();
    let (running, fed) = under_way(&launch, &relay);
    relay.kill();
    let ran = running.wait().expect(1, &["without a word"]);
    let fed = fed.join().expect("a feeder");
    let stored = exported(&launch, &[]);
    assert!(stored.lines().count() >= accepted(&ran.stderr), "{ran:#?}");
    assert!(stored.lines().zip(&fed).all(|(stored, fed)| stored == fed));
}

#[test]
fn a_command_that_is_killed_leaves_the_relay_as_it_is() {
    let launch = Launch::new();
    let relay = launch.start();
    let (mut running, fed) = under_way(&launch, &relay);
    running.child.kill().expect("our own child");
    assert_eq!(running.wait().code, None);
    let fed = fed.join().expect("a feeder");
    relay.await_metric("buzz_transfers_active", &[], |n| n == 0.0);
    let stored = exported(&launch, &[]);
    assert!(stored.lines().zip(&fed).all(|(stored, fed)| stored == fed));
    // The next one is welcome. What was with the store when the command was killed may have been
    // stored after that look.
    import(&launch, lines(&fed)).expect(0, &[" 0 superseded, 0 refused ("]);
    assert!(exported(&launch, &[]).lines().eq(&fed));
    relay
        .stop()
        .expect(0, &["the command has left before its input ended"]);
}

#[test]
fn an_import_alone_that_is_killed_keeps_whole_commits() {
    let launch = Launch::new();
    let mut running = start_import(&launch);
    let fed = feed(running.stdin());
    // It has made the store.
    crate::common::until("a commit", || {
        let data = launch.data_dir().join("events/data.mdb");
        (std::fs::metadata(data).ok()?.len() > 1 << 20).then_some(())
    });
    running.child.kill().expect("our own child");
    running.wait();
    let fed = fed.join().expect("a feeder");
    let stored = exported(&launch, &[]);
    assert!(stored.lines().zip(&fed).all(|(stored, fed)| stored == fed));
}

#[test]
fn a_silent_input_is_no_end() {
    let launch = Launch::new();
    let relay = launch.start();
    let mut running = start_import(&launch);
    let mut stdin = running.stdin();
    for (n, event) in notes(1, 3).iter().enumerate() {
        writeln!(stdin, "{event}").expect("it reads");
        // Stored although more may come.
        relay.await_metric("buzz_import_events_total", &["stored"], |stored| {
            stored == n as f64 + 1.0
        });
    }
    drop(stdin);
    running.wait().expect(0, &[]).counts([3, 0, 0, 0]);
}

#[test]
fn an_input_that_is_closed_or_cannot_be_read() {
    for runs in [false, true] {
        let launch = Launch::new();
        let relay = runs.then(|| launch.start());
        let import = |stdin: Stdio| {
            let mut command = launch.clone().arg("import").command();
            command.stdin(stdin);
            Running::start(command).wait()
        };
        import(Stdio::null()).expect(0, &[]).counts([0; 4]);
        // A folder can be opened and not read.
        let folder = File::open(std::env::temp_dir()).expect("a folder");
        import(folder.into()).expect(1, &["the input cannot be read"]);
        drop(relay);
    }
}

#[test]
fn an_output_that_is_full_or_that_nobody_reads() {
    let launch = Launch::new();
    // More than a pipe and all buffers between hold.
    import(&launch, lines(&notes(1, 6_000))).expect(0, &[]);
    for runs in [false, true] {
        let relay = runs.then(|| launch.start());
        let mut command = launch.clone().arg("export").command();
        let full = File::options()
            .write(true)
            .open("/dev/full")
            .expect("Linux");
        command.stdout(full);
        let ran = Running::start(command).wait();
        ran.expect(1, &["export: not complete: cannot write: No space left"]);

        let mut running = Running {
            child: launch
                .clone()
                .arg("export")
                .command()
                .spawn()
                .expect("the binary"),
            readers: [(); 2].map(|()| std::thread::spawn(String::new)),
        };
        let mut stdout = BufReader::new(running.child.stdout.take().expect("piped"));
        let stderr = running.child.stderr.take();
        running.readers[1] = crate::follow(stderr);
        let mut line = String::new();
        stdout.read_line(&mut line).expect("an event");
        drop(stdout);
        let ran = running.wait().expect(0, &[]);
        assert_eq!(ran.stderr, "", "it ends quietly");
        if let Some(relay) = relay {
            relay.await_metric("buzz_transfers_active", &[], |n| n == 0.0);
        }
    }
}

#[test]
fn a_relay_that_stops_ends_an_export_that_is_not_complete() {
    let launch = Launch::new();
    import(&launch, lines(&notes(1, 6_000))).expect(0, &[]);
    for kills in [false, true] {
        let mut relay = launch.start();
        let mut command = launch.clone().arg("export").command();
        // Nobody reads this pipe for now.
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        command.stdout(Stdio::from(std::os::fd::OwnedFd::from(theirs)));
        let running = Running::start(command);
        relay.await_metric("buzz_transfers_active", &["export"], |n| n == 1.0);
        let word = if kills {
            relay.kill();
            "without a word"
        } else {
            relay.signal(Signal::TERM);
            relay.wait_exit(WAIT).expect(0, &[]);
            "export: not complete: the relay"
        };
        let reader = std::thread::spawn(move || {
            let lines = BufReader::new(ours).lines();
            lines.map_while(Result::ok).count()
        });
        running.wait().expect(1, &["export: not complete: ", word]);
        assert!(reader.join().expect("a reader") < 6_000);
    }
}

#[test]
fn a_store_that_fills_up_ends_the_import_and_keeps_what_was_accepted() {
    let launch = Launch::new().confine(crate::common::Confine::FileBytes(3 << 20));
    let events = notes(1, 6_000);
    let ran = import(&launch, lines(&events)).expect(1, &["the store is full"]);
    // Without the limit the rest goes in.
    let launch = Launch::new().folder(launch.data_dir());
    let stored = exported(&launch, &[]).lines().count();
    assert!(stored >= accepted(&ran.stderr));
    let again = import(&launch, lines(&events)).expect(0, &[]);
    again.counts([events.len() - stored, stored, 0, 0]);
}

#[test]
fn a_folder_that_somebody_else_holds_is_left_alone() {
    let launch = Launch::new();
    let running = start_import(&launch);
    crate::common::until("the folder is held", || {
        launch.data_dir().join("lock").exists().then_some(())
    });
    // No relay starts on it, and no second command goes in.
    let exit = launch.run();
    exit.expect(1, &["is using this data folder"]);
    export(&launch, &[]).expect(1, &["holds the data folder"]);
    let mut running = running;
    drop(running.stdin());
    running.wait().expect(0, &[]);
}
