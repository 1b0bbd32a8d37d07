//! Full maps, full disks, sudden ends. What must not happen to this process happens to a child: the
//! test binary run again with one test and a variable that tells it what to be.
#![allow(unsafe_code)] // Ignoring a signal in the child, for tests only.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Resource, Rlimit, setrlimit};

use super::*;

const ROLE: &str = "BUZZ_TEST_STORE_ROLE";
const DIR: &str = "BUZZ_TEST_STORE_DIR";

fn child(role: &str, dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command
        .args([
            "--exact",
            "store::embedded::tests::trouble::the_child",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(ROLE, role)
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    command
}

fn large(number: u64) -> Event {
    event(
        id(number),
        [1; 32],
        number,
        1,
        &[&["t", "full"]],
        &"x".repeat(2_000),
    )
}

/// Does nothing in a normal run.
#[test]
fn the_child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let dir = PathBuf::from(std::env::var_os(DIR).expect("a folder"));
    match role.as_str() {
        "write until killed" => write_until_killed(&dir),
        "meet a full disk" => meet_a_full_disk(&dir),
        "copy to a full disk" => copy_to_a_full_disk(&dir),
        "compact" => drop(Embedded::compact(&options(&dir), &mut |_, _| ()).expect("compacts")),
        "open" => println!("\nopened {:?}", Embedded::open(&options(&dir))),
        other => panic!("no such role: {other}"),
    }
}

/// Writes groups of all sizes and says each sequence once it is acknowledged.
fn write_until_killed(dir: &Path) {
    let running = Running::open(&options(dir));
    let first = running.store.reader().last_seq().expect("reads") * 1_000;
    for n in 0..1_000_000u64 {
        let group: Vec<Event> = (0..n % 7 + 1)
            .map(|m| {
                let number = first + n * 8 + m;
                let kind = [1, 0, 30_000][number as usize % 3];
                let d = format!("{}", number % 5);
                event(
                    id(number),
                    [(n % 4) as u8; 32],
                    number,
                    kind,
                    &[&["d", &d], &["t", "crash"]],
                    "x",
                )
            })
            .collect();
        for (event, outcome) in group.iter().zip(running.put(&group)) {
            if matches!(outcome, Outcome::Stored { .. }) {
                println!("\nstored {}", event.json());
            }
        }
    }
}

/// Reads what the child says was stored, and kills it midway.
fn kill_after(mut child: Child, events: usize) -> Vec<Event> {
    let output = BufReader::new(child.stdout.take().expect("its output"));
    let mut stored = Vec::new();
    for line in output.lines().map_while(Result::ok) {
        // The last line may be cut short.
        if let Some(Ok(event)) = line.strip_prefix("stored ").map(Event::parse) {
            stored.push(event);
        }
        if stored.len() == events {
            let _ = child.kill();
        }
    }
    child.wait().expect("its end");
    stored
}

#[test]
fn killed_at_any_moment_it_loses_nothing_acknowledged() {
    let dir = folder();
    let mut acknowledged = Vec::new();
    for round in 0..5 {
        let child = child("write until killed", dir.path())
            .spawn()
            .expect("a child");
        acknowledged.extend(kill_after(child, 100 + 37 * round));
        let store = open_again(&options(dir.path())).expect("opens after a sudden end");
        let stored = audit(&store);
        for event in &acknowledged {
            let newer = |other: &Event| {
                address(other) == address(event) && other.created_at() > event.created_at()
            };
            let replaced = address(event).is_some() && stored.values().any(newer);
            let found = store.reader().find(event.id()).expect("reads").is_some();
            assert!(
                found || replaced,
                "an acknowledged event is gone: {event:?}"
            );
        }
    }
    assert!(acknowledged.len() >= 500);
}

#[test]
fn a_full_store_refuses_events_and_nothing_else() {
    let dir = folder();
    let small = EmbeddedOptions {
        map_bytes: 1 << 20,
        ..options(dir.path())
    };
    let running = Running::open(&small);
    let mut stored = 0;
    let error = loop {
        match running.put_one(&large(stored)) {
            Outcome::Stored { seq } => assert_eq!(seq, stored + 1),
            Outcome::Failed(error) => break error,
            other => panic!("{other:?}"),
        }
        stored += 1;
        assert!(stored < 1_000);
    };
    assert_eq!(error.kind(), StoreErrorKind::Full);
    assert!(error.retryable());
    assert!(stored > 50, "{stored}");
    // What is stored is still known.
    let outcomes = running.put(&[large(2_000), large(0), note(u64::MAX, 1)]);
    assert!(
        matches!(
            outcomes[..],
            [Outcome::Failed(_), Outcome::Duplicate, Outcome::Failed(_)]
        ),
        "{outcomes:?}"
    );
    assert_eq!(audit(&running.store).len() as u64, stored);
    assert_eq!(
        answer(
            &running.store.reader(),
            &[Filter::default()],
            BOUNDS,
            &budget(9)
        )
        .len() as u64,
        stored
    );
    drop(running);
    let running = Running::open(&options(dir.path()));
    assert!(
        matches!(running.put_one(&large(stored)), Outcome::Stored { seq } if seq == stored + 1)
    );
    audit(&running.store);
}

/// A limit on file sizes is as good as a full disk: writes fail at the same place, and the limit can
/// be lifted as a disk can be cleared.
fn meet_a_full_disk(dir: &Path) {
    // SAFETY: the child sets a signal's disposition to one of the system's own, before any thread
    // of it depends on that signal.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let running = Running::open(&options(dir));
    let limit = |bytes| {
        setrlimit(
            Resource::Fsize,
            Rlimit {
                current: Some(bytes),
                maximum: None,
            },
        )
    };
    limit(1 << 20).expect("a limit");
    let mut stored = 0;
    let error = loop {
        match running.put_one(&large(stored)) {
            Outcome::Stored { .. } => stored += 1,
            Outcome::Failed(error) => break error,
            other => panic!("{other:?}"),
        }
        assert!(stored < 1_000);
    };
    // LMDB calls a write that came out short an I/O error.
    assert!(
        matches!(error.kind(), StoreErrorKind::Full | StoreErrorKind::Io),
        "{error:?}"
    );
    assert!(error.retryable());
    assert!(
        matches!(running.put_one(&large(stored)), Outcome::Failed(_)),
        "still full"
    );
    assert_eq!(audit(&running.store).len() as u64, stored);
    limit(64 << 20).expect("a limit");
    let outcome = running.put_one(&large(stored));
    assert!(
        matches!(outcome, Outcome::Stored { seq } if seq == stored + 1),
        "{outcome:?}"
    );
    println!("\nrecovered after {stored}: {error}");
}

#[test]
fn a_full_disk_fails_the_group_and_the_writer_recovers() {
    let dir = folder();
    let output = child("meet a full disk", dir.path())
        .output()
        .expect("a child");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("\nrecovered after "),
        "{text}"
    );
    let store = open_again(&options(dir.path())).expect("opens");
    assert!(audit(&store).len() > 50);
}

/// A limit below the size of the copy, and above that of everything else.
fn copy_to_a_full_disk(dir: &Path) {
    // SAFETY: as above.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let rlimit = Rlimit {
        current: Some(1 << 20),
        maximum: None,
    };
    setrlimit(Resource::Fsize, rlimit).expect("a limit");
    let compacted = Embedded::compact(&options(dir), &mut |_, _| ());
    println!("\ncompacted {compacted:?}");
    let store = Embedded::open(&options(dir)).expect("opens");
    println!(
        "\nbacked up {:?}",
        store.backup(&dir.join("backup"), &mut |_, _| ())
    );
    println!("\nleft {:?}", files(dir));
}

fn files(dir: &Path) -> Vec<std::ffi::OsString> {
    let events = std::fs::read_dir(dir.join("events")).expect("a folder");
    let all = std::fs::read_dir(dir).expect("a folder").chain(events);
    let mut names: Vec<_> = all
        .map(|entry| entry.expect("a name").file_name())
        .collect();
    names.sort();
    names
}

#[test]
fn a_copy_that_meets_a_full_disk_leaves_nothing() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    running.put(&(0..800).map(large).collect::<Vec<_>>());
    drop(running);
    let mut before = files(dir.path());
    let output = child("copy to a full disk", dir.path())
        .output()
        .expect("a child");
    let text = String::from_utf8_lossy(&output.stdout);
    for words in ["compacted Err(Copy(Store(", "backed up Err(Store("] {
        assert!(text.contains(words), "{text}");
    }
    assert_eq!(text.matches("kind: Full").count(), 2, "{text}");
    assert!(text.contains(&format!("left {before:?}")), "{text}");
    before.sort();
    assert_eq!(files(dir.path()), before);
    let store = open_again(&options(dir.path())).expect("opens");
    assert_eq!(audit(&store).len(), 800);
}

#[test]
fn compaction_killed_at_any_moment_leaves_a_whole_store() {
    let dir = folder();
    let running = Running::open(&options(dir.path()));
    running.put(&(0..3_000).map(large).collect::<Vec<_>>());
    drop(running);
    let mut random = fastrand::Rng::with_seed(7);
    let (mut halves, mut wholes) = (0, 0);
    let unfinished = dir.path().join("events").join(file::UNFINISHED);
    for round in 0..24 {
        let mut child = child("compact", dir.path()).spawn().expect("a child");
        let end = std::time::Instant::now() + WAIT;
        // Some are killed as soon as there is something, some later, some not at all.
        let patience = if round % 2 == 0 { 0 } else { random.u64(0..25) };
        while !unfinished.exists() && child.try_wait().expect("our child").is_none() {
            assert!(std::time::Instant::now() < end);
        }
        std::thread::sleep(Duration::from_millis(patience));
        if round % 8 != 7 {
            let _ = child.kill();
        }
        child.wait().expect("its end");
        halves += usize::from(unfinished.exists());
        wholes += usize::from(!unfinished.exists());
        let store = open_again(&options(dir.path())).expect("opens");
        assert!(!unfinished.exists(), "what was left is removed");
        assert_eq!(audit(&store).len(), 3_000);
    }
    assert!(
        halves > 0 && wholes > 0,
        "{halves} killed midway, {wholes} not"
    );
}

#[test]
fn a_folder_that_cannot_be_written_is_refused() {
    let dir = folder();
    drop(open_again(&options(dir.path())).expect("opens"));
    let binary = std::env::current_exe().expect("this binary");
    // Root may write anywhere: then the child is somebody else, on a copy that somebody can run.
    let root = rustix::process::geteuid().is_root();
    let copy = dir.path().with_extension("binary");
    let mut command = child("open", dir.path());
    if root {
        std::fs::copy(binary, &copy).expect("a copy");
        command = child("open", dir.path());
        let arguments: Vec<_> = command.get_args().map(std::ffi::OsStr::to_owned).collect();
        command = Command::new(&copy);
        command
            .args(arguments)
            .env(ROLE, "open")
            .env(DIR, dir.path())
            .uid(65_534)
            .gid(65_534);
    }
    let modes = |dir_mode, file_mode| {
        for (path, mode) in [
            (dir.path().to_path_buf(), dir_mode),
            (dir.path().join("events"), dir_mode),
            (dir.path().join("lock"), file_mode),
            (dir.path().join("events/data.mdb"), file_mode),
            (dir.path().join("events/lock.mdb"), file_mode),
        ] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
        }
    };
    modes(0o555, 0o444);
    let output = command.stdout(Stdio::piped()).output();
    modes(0o755, 0o644);
    let _ = std::fs::remove_file(copy);
    match output {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(text.contains("opened Err(ReadOnly("), "{text}");
        }
        Err(error) => println!("skipped: no child of another user can be run here: {error}"),
    }
    open_again(&options(dir.path())).expect("opens again");
}

#[test]
fn a_second_process_is_refused() {
    let dir = folder();
    let store = open_again(&options(dir.path())).expect("opens");
    let open = || {
        let output = child("open", dir.path()).output().expect("a child");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let locked = format!("opened Err(Locked {{ pid: Some({}) }})", std::process::id());
    let text = open();
    assert!(text.contains(&locked), "{text}");
    drop(store);
    let text = open();
    assert!(text.contains("opened Ok("), "{text}");
}
