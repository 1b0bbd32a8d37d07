//! The unit: what systemd says of it, and what the relay needs of it.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use buzz_uring::error::EXIT_CONFIG;
use buzz_uring::limits;

use crate::{file, output, path, program, run, said};

pub const UNIT: &str = "deploy/systemd/buzz-uring.service";

/// The values of a directive, in order.
fn values(name: &str) -> Vec<String> {
    let unit = file(UNIT);
    let lines = unit.lines().filter_map(|line| line.split_once('='));
    let of_name = lines.filter(|(directive, _)| *directive == name);
    of_name.map(|(_, value)| value.trim().to_owned()).collect()
}

#[track_caller]
fn value(name: &str) -> String {
    let [value] = <[String; 1]>::try_from(values(name)).expect(name);
    value
}

/// The system calls that the unit allows, from the groups as this machine's systemd knows them.
pub fn allowed_calls(test: &str) -> Option<BTreeSet<String>> {
    let systemd = program(test, "systemd-analyze")?;
    let group = |name: &str| -> Vec<String> {
        let text = run(Command::new(&systemd).args(["syscall-filter", name]));
        let lines = text.lines().map(str::trim).skip(1);
        let words = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        words.map(str::to_owned).collect()
    };
    // Groups within groups.
    let resolve = |name: &str| {
        let (mut calls, mut open) = (BTreeSet::new(), vec![name.to_owned()]);
        while let Some(name) = open.pop() {
            match name.starts_with('@') {
                true => open.extend(group(&name)),
                false => drop(calls.insert(name)),
            }
        }
        calls
    };
    let mut allowed = BTreeSet::new();
    for filter in values("SystemCallFilter") {
        let (takes, names) = match filter.strip_prefix('~') {
            Some(names) => (true, names),
            None => (false, filter.as_str()),
        };
        for name in names.split_whitespace() {
            match takes {
                true => allowed = &allowed - &resolve(name),
                false => allowed.append(&mut resolve(name)),
            }
        }
    }
    // What systemd allows whatever a unit says.
    allowed.append(&mut resolve("@default"));
    Some(allowed)
}

#[test]
fn systemd_takes_the_unit() {
    const TEST: &str = "systemd_takes_the_unit";
    let Some(systemd) = program(TEST, "systemd-analyze") else {
        return;
    };
    // With a program that is there, or that is what it complains of.
    let folder = tempfile::tempdir().expect("a folder");
    let unit = folder.path().join("buzz-uring.service");
    let text = file(UNIT).replace("/usr/local/bin/buzz-uring", "/bin/true");
    fs::write(&unit, text).expect("a file");
    let verified = output(Command::new(&systemd).arg("verify").arg(&unit));
    let text = said(&verified);
    assert!(verified.status.success(), "{text}");
    // It warns of what it does not know, and goes on.
    assert!(!text.contains("buzz-uring"), "{text}");

    let security = Command::new(&systemd)
        .args(["security", "--offline=true", "--threshold=20", "--no-pager"])
        .arg(&unit)
        .env("LC_ALL", "C")
        .output();
    let security = security.expect("a program that runs");
    assert!(security.status.success(), "{}", said(&security));
}

#[test]
fn the_filter_has_what_shards_live_on() {
    let test = "the_filter_has_what_shards_live_on";
    let Some(allowed) = allowed_calls(test) else {
        return;
    };
    for call in [
        "io_uring_setup",
        "io_uring_enter",
        "io_uring_register",
        "sched_setaffinity",
        "epoll_wait",
        "flock",
        "mmap",
        "fdatasync",
        "prlimit64",
    ] {
        assert!(allowed.contains(call), "{call}");
    }
    for call in ["mount", "ptrace", "bpf", "setuid", "reboot", "add_key"] {
        assert!(!allowed.contains(call), "{call}");
    }
}

#[test]
fn its_times_and_codes_are_the_relay_s() {
    let seconds = |name: &str| value(name).parse::<u64>().expect("seconds");
    assert_eq!(seconds("TimeoutStopSec"), limits::TERMINATION_GRACE_SECONDS);
    // Pings come in half the time, and a heart may be silent for that long before they stop.
    assert!(seconds("WatchdogSec") >= 2 * limits::HEARTBEAT_STALE.as_secs());
    assert_eq!(
        value("RestartPreventExitStatus"),
        EXIT_CONFIG.to_string(),
        "bad settings"
    );
    assert_eq!(value("Type"), "notify");
    assert_eq!(value("LimitMEMLOCK"), "infinity");
    let descriptors: u64 = value("LimitNOFILE").parse().expect("a number");
    let connections = descriptors * limits::CONNECTIONS_DESCRIPTORS_PERCENT / 100;
    assert!(connections >= limits::CONNECTIONS_DEFAULT as u64);
    assert!(value("ExecStartPre").ends_with("buzz-uring check-config"));
    assert!(value("ExecReload").ends_with("buzz-uring reload"));
    // The folder that the unit makes is the one that the relay uses.
    let folder = format!("BUZZ_DATA_DIR=/var/lib/{}", value("StateDirectory"));
    let file = "BUZZ_CONFIG=/etc/buzz-uring/buzz-uring.env".to_owned();
    assert_eq!(values("Environment"), [folder, file]);
}

#[test]
fn the_user_is_made() {
    let users = file("deploy/systemd/buzz-uring.sysusers");
    let made = users.lines().filter(|line| line.starts_with("u "));
    let names: Vec<&str> = made.filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(names, [value("User").as_str()]);
    assert!(path("deploy/systemd/buzz-uring.env").is_file());
    // What it gave would win over the file, and a reload could change nothing.
    assert_eq!(values("EnvironmentFile"), [""; 0]);
}
