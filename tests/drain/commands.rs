//! The drain by command: through the control socket, and on the health port.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::{counts, ends_clean, expect_restart, launch, millis};
use crate::common::raw::{self, Raw};
use crate::common::{WAIT, until};

#[test]
fn the_command_drains_and_waits_for_the_end() {
    let launch = launch(2).set("BUZZ_DRAIN_JITTER_MS", "400");
    let mut relay = launch.start();
    let mut clients: Vec<Raw> = (0..5).map(|_| Raw::upgraded(relay.address)).collect();
    let socket = launch.data_dir().join("control.sock");
    let mode = std::fs::metadata(&socket)
        .expect("a socket")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);

    let command = launch.clone().arg("drain").arg("--wait");
    let mut command = command.spawn();
    for client in &mut clients {
        expect_restart(client);
    }
    let told = command.wait_exit(WAIT).expect("an end");
    told.expect(0, &["waiting"]);
    let told: serde_json::Value = serde_json::from_str(&told.stdout).expect("JSON");
    assert_eq!(told["exit_code"], 0);
    assert_eq!(told["requested_by"], "admin");
    assert_eq!(told["acknowledged"], 5);
    assert_eq!(counts(&ends_clean(&mut relay)), (5, 0, 0));
    assert!(!socket.exists(), "it goes with the relay");
}

#[test]
fn without_wait_the_command_ends_at_once() {
    let launch = launch(1).set("BUZZ_DRAIN_GRACE_MS", "1500");
    let mut relay = launch.start();
    let exit = launch.clone().arg("drain").run();
    exit.expect(0, &[]);
    let told: Value = serde_json::from_str(&exit.stdout).expect("JSON");
    assert_eq!(told["exit_code"], Value::Null, "{told}");
    assert_eq!(told["state"], "grace", "{told}");
    assert_eq!(told["requested_by"], "admin", "{told}");
    ends_clean(&mut relay);
}

#[test]
fn without_a_relay_the_command_says_so() {
    let exit = launch(1).arg("drain").run();
    exit.expect(1, &["no relay runs on", "BUZZ_DATA_DIR"]);
    // Nor where one has been killed and its socket's file is left.
    let launch = launch(1);
    launch.start().kill();
    assert!(launch.data_dir().join("control.sock").exists());
    launch
        .clone()
        .arg("drain")
        .run()
        .expect(1, &["no relay runs on"]);
    let relay = launch.start();
    relay.stop().expect(0, &[]);
}

#[test]
fn a_command_that_waits_for_a_relay_that_is_killed_fails() {
    let launch = launch(1).set("BUZZ_DRAIN_GRACE_MS", "30000");
    let mut relay = launch.start();
    let mut command = launch.clone().arg("drain").arg("--wait").spawn();
    until("it drains", || {
        (relay.status()["drain"]["state"] == "grace").then_some(())
    });
    relay.kill();
    let exit = command.wait_exit(WAIT).expect("an end");
    exit.expect(1, &["not in order"]);
}

#[test]
fn the_first_signal_after_a_command_joins_and_the_second_stops() {
    let launch = launch(1).set("BUZZ_DRAIN_GRACE_MS", "30000");
    let mut relay = launch.start();
    let answer = raw::request(relay.health, "POST", "/drain", &[]);
    assert_eq!(answer.status, 202, "{answer:?}");
    assert_eq!(answer.json()["exit_code"], serde_json::Value::Null);
    std::thread::sleep(millis(1_100));
    relay.signal(Signal::TERM);
    std::thread::sleep(millis(300));
    assert_eq!(relay.status()["drain"]["state"], "grace", "it joined");
    std::thread::sleep(millis(900));
    relay.signal(Signal::TERM);
    relay
        .wait_exit(Duration::from_secs(6))
        .expect(1, &["a second signal"]);
}

#[test]
fn a_page_in_a_browser_cannot_drain() {
    let relay = launch(1).start();
    let fields = [("Origin", "http://pages.example")];
    let answer = raw::request(relay.health, "POST", "/drain", &fields);
    assert_eq!(answer.status, 403, "{answer:?}");
    assert_eq!(raw::request(relay.health, "GET", "/drain", &[]).status, 405);
    assert_eq!(
        raw::request(relay.address, "POST", "/drain", &[]).status,
        405
    );
    assert_eq!(relay.status()["drain"]["state"], "none");
    relay.stop().expect(0, &[]);
}
