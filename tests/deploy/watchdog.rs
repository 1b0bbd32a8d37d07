//! The service manager's watchdog: pings while every shard runs, and none while one does not.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::common::{Launch, Raw, WAIT, get, raw, until};

/// What the service manager waits for a ping.
const PATIENCE: Duration = Duration::from_millis(400);

/// A service manager that only listens.
struct Manager {
    folder: TempDir,
    socket: UnixDatagram,
}

impl Manager {
    fn new() -> Manager {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = UnixDatagram::bind(folder.path().join("notify")).expect("a socket");
        Manager { folder, socket }
    }

    fn on(&self, launch: Launch) -> Launch {
        launch
            .set("NOTIFY_SOCKET", self.folder.path().join("notify").display())
            .set("WATCHDOG_USEC", PATIENCE.as_micros())
    }

    /// The next word within this time.
    fn word(&self, wait: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(wait)).expect("a time");
        let mut buffer = [0; 1_024];
        match self.socket.recv(&mut buffer) {
            Ok(length) => Some(String::from_utf8_lossy(&buffer[..length]).into_owned()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Waits for a word that this accepts.
    fn wait_for(&self, what: &str, accepts: impl Fn(&str) -> bool) {
        let end = Instant::now() + WAIT;
        loop {
            let word = self.word(WAIT).unwrap_or_else(|| panic!("no {what}"));
            if accepts(&word) {
                return;
            }
            assert!(Instant::now() < end, "no {what}");
        }
    }
}

fn is_ping(word: &str) -> bool {
    word == "WATCHDOG=1"
}

#[test]
fn pings_come_while_every_shard_runs_and_stop_with_one_that_does_not() {
    let manager = Manager::new();
    let hooks: PathBuf = manager.folder.path().join("hooks");
    fs::write(&hooks, "block_on=stand still").expect("a file");
    let launch = manager.on(Launch::new().set("BUZZ_HOOKS_FILE", hooks.display()));
    let relay = launch.start();
    manager.wait_for("readiness", |word| word.starts_with("READY=1"));
    for _ in 0..5 {
        manager.wait_for("ping", is_ping);
    }

    let mut client = Raw::upgraded(relay.address);
    client.send(raw::text("stand still"));
    until("a shard stands still", || {
        (get(relay.health, "/_liveness", &[]).status == 503).then_some(())
    });
    manager.wait_for("reason", |word| word.starts_with("STATUS=shard "));
    // Five times as long as a manager would wait.
    let silence = manager.word(5 * PATIENCE);
    assert_eq!(silence, None, "a ping while a shard stands still");

    fs::write(&hooks, "").expect("a file");
    manager.wait_for("ping of a relay whose shards run again", is_ping);
    relay
        .stop()
        .expect(0, &["the watchdog is not fed any more"]);
}

#[test]
fn a_relay_that_drains_is_alive() {
    let manager = Manager::new();
    let launch = manager.on(Launch::new().set("BUZZ_DRAIN_GRACE_MS", "1500"));
    let relay = launch.start();
    relay.signal(rustix::process::Signal::TERM);
    manager.wait_for("end", |word| word.starts_with("STOPPING=1"));
    manager.wait_for("ping in the grace", is_ping);
    relay.stop().expect(0, &[]);
}
