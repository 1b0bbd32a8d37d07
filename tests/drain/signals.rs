//! Signals: the second one, one during the start, and what a service manager is told.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{Hooks, counts, ends_clean, expect_restart, launch, lines, millis, terminate};
use crate::common::raw::Raw;
use crate::common::{WAIT, until};

#[test]
fn a_second_signal_after_a_second_stops_at_once() {
    let mut relay = launch(2).set("BUZZ_DRAIN_GRACE_MS", "30000").start();
    let _client = Raw::upgraded(relay.address);
    let start = terminate(&relay);
    std::thread::sleep(millis(1_100));
    relay.signal(Signal::INT);
    let exit = relay.wait_exit(WAIT);
    exit.expect(1, &["a second signal"]);
    assert!(start.elapsed() < Duration::from_secs(6));
}

#[test]
fn it_stops_also_when_the_closes_have_begun() {
    let mut relay = launch(2).set("BUZZ_DRAIN_JITTER_MS", "20000").start();
    let _clients: Vec<Raw> = (0..5).map(|_| Raw::upgraded(relay.address)).collect();
    let start = terminate(&relay);
    std::thread::sleep(millis(1_100));
    relay.signal(Signal::TERM);
    relay.wait_exit(WAIT).expect(1, &["a second signal"]);
    assert!(start.elapsed() < Duration::from_secs(6));
}

#[test]
fn a_second_signal_within_a_second_is_the_same_one() {
    let mut relay = launch(2).set("BUZZ_DRAIN_GRACE_MS", "1500").start();
    let mut client = Raw::upgraded(relay.address);
    let start = terminate(&relay);
    std::thread::sleep(millis(100));
    relay.signal(Signal::INT);
    relay.signal(Signal::TERM);
    expect_restart(&mut client);
    let exit = ends_clean(&mut relay);
    assert!(start.elapsed() >= millis(1_500), "the grace is whole");
    assert_eq!(counts(&exit), (1, 0, 0));
}

#[test]
fn a_signal_during_the_start_opens_nothing() {
    let hooks = Hooks::new("start_ms=20000");
    let launch = hooks.on(launch(1));
    let mut process = launch.spawn();
    until("signals are caught", || {
        process.output().contains("the relay starts").then_some(())
    });
    let start = Instant::now();
    process.signal(Signal::TERM);
    let exit = process.wait_exit(WAIT).expect("an end");
    exit.expect(0, &["nothing was served"]);
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(!launch.data_dir().exists(), "no folder was made");
    assert!(!exit.stderr.contains("\"url\""), "it never served");
}

#[test]
fn a_service_manager_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    manager.set_read_timeout(Some(WAIT)).expect("a time");
    let heard = || {
        let mut buffer = [0; 512];
        let length = manager.recv(&mut buffer).expect("a word");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let launch = launch(1)
        .set("NOTIFY_SOCKET", path.display())
        .set("BUZZ_DRAIN_JITTER_MS", "300");
    let mut relay = launch.start();
    assert_eq!(heard(), "READY=1\nSTATUS=serving");
    let mut clients: Vec<Raw> = (0..4).map(|_| Raw::upgraded(relay.address)).collect();
    terminate(&relay);
    assert!(heard().starts_with("STOPPING=1\nSTATUS=draining"));
    assert_eq!(heard(), "STATUS=draining: 4 of 4 connections left");
    for client in &mut clients {
        expect_restart(client);
    }
    let mut words = Vec::new();
    while words
        .last()
        .is_none_or(|word| word != "STATUS=closing the store")
    {
        words.push(heard());
    }
    assert!(words.contains(&"STATUS=draining: 0 of 4 connections left".to_owned()));
    let exit = ends_clean(&mut relay);
    let seed = lines(&exit).find_map(|line| line["seed"].as_str().map(str::to_owned));
    assert_eq!(seed.expect("the seed is logged").len(), 16);
}
