//! Sockets that the service manager keeps, with the embedded store: who comes while no relay runs waits.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::common::raw::{self, Raw};
use crate::common::{Launch, WAIT, get};
use crate::load::Load;
use crate::serves;

fn socket() -> Arc<TcpListener> {
    Arc::new(TcpListener::bind("127.0.0.1:0").expect("bind"))
}

#[tokio::test(flavor = "multi_thread")]
async fn restarts_under_load_refuse_nobody_and_lose_nothing() {
    for driver in ["auto", "epoll"] {
        let kept = socket();
        let launch = Launch::new()
            .set("BUZZ_IO_DRIVER", driver)
            .set("BUZZ_DRAIN_GRACE_MS", 5_000)
            .inherit("buzz-uring.socket", &kept);
        let mut relay = launch.start();
        assert_eq!(relay.address, kept.local_addr().expect("an address"));
        assert_eq!(relay.line["sockets"], "inherited");
        let load = Load::start(relay.address, 4, 2);
        let mut longest = Duration::ZERO;
        for _ in 0..5 {
            serves(relay.address, 100).await;
            let begun = Instant::now();
            relay
                .stop()
                .expect(0, &["\"sockets\":\"kept\"", "\"grace_ms\":0,"]);
            // In the queue, with nobody there.
            let mut early = Raw::connect(kept.local_addr().expect("an address"));
            early.send(raw::upgrade(&[]));
            relay = launch.start();
            longest = longest.max(begun.elapsed());
            early.expect_upgrade();
        }
        let seen = load.stop().await;
        assert_eq!(*seen.faults.lock().unwrap(), [""; 0], "{driver}");
        assert!(seen.told.load(Ordering::Relaxed) > 0);
        assert!(!seen.acknowledged.lock().unwrap().is_empty());
        eprintln!(
            "{driver}: {} connections, longest from signal to ready {longest:?}",
            seen.opened.load(Ordering::Relaxed)
        );
        relay.stop().expect(0, &[]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_socket_serves_all_shards_evenly() {
    for driver in ["auto", "epoll"] {
        let kept = socket();
        let launch = Launch::new()
            .set("BUZZ_SHARDS", 4)
            .set("BUZZ_IO_DRIVER", driver);
        let relay = launch.inherit("public", &kept).start();
        let mut clients = Vec::new();
        for _ in 0..400 {
            clients.push(Raw::upgraded(relay.address));
        }
        let status = relay.status();
        let shares = status["shards"].as_array().expect("shards").iter();
        let shares: Vec<u64> = shares.filter_map(|one| one["sockets"].as_u64()).collect();
        eprintln!("{driver}: {shares:?}");
        assert_eq!(shares.iter().sum::<u64>(), 400, "{shares:?}");
        // As far apart as the hand-over between shards lets them be.
        let (least, most) = (shares.iter().min(), shares.iter().max());
        let apart = most.expect("shards") - least.expect("shards");
        assert!(
            apart <= buzz_uring::limits::IMBALANCE_MAX as u64 + 1,
            "{shares:?}"
        );
    }
}

#[test]
fn names_say_what_a_socket_is_for() {
    let (public, health, metrics) = (socket(), socket(), socket());
    let relay = Launch::new()
        .set("BUZZ_HEALTH_PORT", 1)
        .set("BUZZ_METRICS_PORT", 2)
        .inherit("health", &health)
        .inherit("public", &public)
        .inherit("metrics", &metrics)
        .start();
    let address = |of: &TcpListener| of.local_addr().expect("an address");
    assert_eq!(relay.address, address(&public));
    assert_eq!(relay.health, address(&health));
    assert_eq!(relay.metrics, address(&metrics));
    assert_eq!(get(relay.health, "/_readiness", &[]).status, 200);
    assert!(relay.metrics_text().contains("buzz_"));
    let variables = relay.proc_file("environ");
    assert!(variables.contains("LISTEN_PID"), "as it was started");
    relay.stop().expect(0, &[]);
}

#[test]
fn what_is_no_listening_socket_fails_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let other = UnixListener::bind(folder.path().join("socket")).expect("bind");
    // Only its descriptor counts.
    let other = Arc::new(TcpListener::from(std::os::fd::OwnedFd::from(other)));
    let exit = Launch::new().inherit("odd", &other).run();
    exit.expect(1, &["odd", "is no TCP socket that listens"]);
}

#[test]
fn sockets_that_were_meant_for_another_process_are_left_alone() {
    let relay = Launch::new()
        .set("LISTEN_PID", 1)
        .set("LISTEN_FDS", 1)
        .start();
    assert_eq!(relay.line["sockets"], "bound");
    let mut relay = relay;
    relay.signal(rustix::process::Signal::TERM);
    relay.wait_exit(WAIT).expect(0, &["\"sockets\":\"closed\""]);
}
