//! Start-up: what it says, and who may not start.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use rustix::process::Signal;

use crate::common::relay::Process;
use crate::common::{Launch, Raw, WAIT, quiet_address, raw, until};

#[test]
fn one_line_says_what_runs_and_where() {
    let launch = Launch::new().set("BUZZ_SHARDS", "3");
    let relay = launch.start();
    let line = &relay.line;
    assert_eq!(line["version"], env!("CARGO_PKG_VERSION"), "{line}");
    assert_eq!(line["shards"], 3, "{line}");
    assert_eq!(line["store"], "embedded", "{line}");
    assert!(
        matches!(line["driver"].as_str(), Some("io_uring" | "epoll")),
        "{line}"
    );
    for address in [relay.address, relay.health, relay.metrics] {
        assert_ne!(address.port(), 0, "{line}");
    }
    assert!(
        line["url"]
            .as_str()
            .is_some_and(|url| url.starts_with("ws://")),
        "{line}"
    );
    // Why this driver, which limits, which folder: somewhere in what a person reads.
    let text = line.to_string();
    assert!(
        line["connections_max"]
            .as_u64()
            .is_some_and(|count| count > 0),
        "{line}"
    );
    for word in ["524288", launch.data_dir().to_str().unwrap()] {
        assert!(text.contains(word), "{word} is not in {text}");
    }

    let status = relay.status();
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"), "{status}");
    assert_eq!(status["commit"], buzz_uring::version::COMMIT, "{status}");
    assert_eq!(status["lifecycle"], "ready", "{status}");
    let text = status.to_string();
    for address in [relay.address, relay.health, relay.metrics] {
        assert!(
            text.contains(&address.to_string()),
            "{address} is not in {text}"
        );
    }
}

#[test]
fn the_same_address_is_refused() {
    let first = Launch::new().start();
    let second = Launch::new().set("BUZZ_BIND_ADDR", first.address);
    let exit = second.run();
    assert!(![0, 64].contains(&exit.code()), "{exit:#?}");
    assert!(!second.data_dir().exists(), "it came as far as its data");
    let words = ["BUZZ_BIND_ADDR", &first.address.to_string()];
    assert!(
        words.iter().all(|word| exit.stderr.contains(word)),
        "{exit:#?}"
    );

    for (variable, port) in [
        ("BUZZ_HEALTH_PORT", first.health.port()),
        ("BUZZ_METRICS_PORT", first.metrics.port()),
    ] {
        let exit = Launch::new().set(variable, port).run();
        assert!(![0, 64].contains(&exit.code()), "{exit:#?}");
        let words = [variable, &port.to_string()];
        assert!(
            words.iter().all(|word| exit.stderr.contains(word)),
            "{exit:#?}"
        );
    }
    assert_eq!(raw::get(first.address, "/health", &[]).text(), "ok");
}

#[test]
fn an_address_taken_by_another_program_is_refused() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let exit = Launch::new().set("BUZZ_BIND_ADDR", address).run();
    assert_ne!(exit.code(), 0);
    assert!(exit.stderr.contains(&address.to_string()), "{exit:#?}");
}

#[test]
fn the_same_folder_is_refused() {
    let launch = Launch::new();
    let first = launch.start();
    let exit = launch.run();
    assert!(![0, 64].contains(&exit.code()), "{exit:#?}");
    for word in ["data folder", "another"] {
        assert!(exit.stderr.contains(word), "{word} is not in {exit:#?}");
    }
    assert_eq!(raw::get(first.address, "/health", &[]).text(), "ok");
    first.stop().expect(0, &[]);
    // The lock went with its holder.
    launch.start().stop().expect(0, &[]);
}

#[test]
fn of_two_that_start_together_on_an_address_one_serves() {
    for _ in 0..5 {
        let address = quiet_address();
        let launch = || Launch::new().set("BUZZ_BIND_ADDR", address);
        one_serves([launch().spawn(), launch().spawn()], "BUZZ_BIND_ADDR");
    }
}

#[test]
fn of_two_that_start_together_on_a_folder_one_serves() {
    for _ in 0..5 {
        let launch = Launch::new();
        one_serves([launch.spawn(), launch.spawn()], "data folder");
    }
}

/// Of two processes one says that it serves, the other ends and says why.
fn one_serves(mut both: [Process; 2], word: &str) {
    let lost = until("one of two gives up", || {
        both.iter_mut()
            .position(|process| process.wait_exit(Duration::ZERO).is_some())
    });
    let served = both[1 - lost].wait_ready();
    assert!(
        served.is_some(),
        "none serves:\n{}\n{}",
        both[0].output(),
        both[1].output()
    );
    let said = both[lost].output();
    assert!(said.contains(word), "{word} is not in {said}");
    assert!(both[1 - lost].wait_exit(Duration::ZERO).is_none());
}

#[test]
fn it_may_start_again_at_once_where_it_was() {
    // Connections that the relay closed first are remembered by the kernel for a minute.
    let launch = Launch::new().set("BUZZ_BIND_ADDR", quiet_address());
    for killed in [false, true, false] {
        let mut relay = launch.start();
        let mut clients: Vec<Raw> = (0..5).map(|_| Raw::upgraded(relay.address)).collect();
        if killed {
            relay.kill();
        } else {
            relay.signal(Signal::TERM);
            for client in &mut clients {
                client.messages_until_close();
            }
            relay.wait_exit(WAIT).expect(0, &[]);
        }
    }
}

#[test]
fn overlapping_addresses_are_refused_and_others_are_not() {
    let own = quiet_address();
    let _first = Launch::new().set("BUZZ_BIND_ADDR", own).start();
    let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, own.port()));
    let exit = Launch::new().set("BUZZ_BIND_ADDR", everywhere).run();
    assert!(![0, 64].contains(&exit.code()), "{exit:#?}");
    assert!(exit.stderr.contains("BUZZ_BIND_ADDR"), "{exit:#?}");
    let neighbour = SocketAddr::from((Ipv4Addr::new(127, 78, 0, 1), own.port()));
    Launch::new().set("BUZZ_BIND_ADDR", neighbour).start();
    if TcpListener::bind("[::1]:0").is_ok() {
        let six = Launch::new().set("BUZZ_BIND_ADDR", "[::1]:0").start();
        assert_eq!(raw::get(six.address, "/health", &[]).text(), "ok");
    }
}

#[test]
fn a_signal_during_start_up_ends_it_in_order() {
    for delay_ms in [5, 10, 15, 20, 30, 40, 60, 80] {
        let mut process = Launch::new().spawn();
        // Not a wait for something: it is the moment of the signal that differs.
        std::thread::sleep(Duration::from_millis(delay_ms));
        process.signal(Signal::TERM);
        let exit = process.wait_exit(WAIT).expect("an end");
        // Before the program's first line nothing can catch it.
        let early = exit.signal() == Some(Signal::TERM.as_raw()) && exit.stderr.is_empty();
        assert!(
            early || exit.status.success(),
            "after {delay_ms} ms: {exit:#?}"
        );
    }
}
