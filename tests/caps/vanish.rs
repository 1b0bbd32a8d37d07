//! Clients that vanish while they wait, thousands of them: no permit is lost, and none is added.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Author, Relay};
use crate::support::{
    AUTH, AUTH_VARIABLE, HISTORY, HISTORY_VARIABLE, Hooks, Said, Visitor, agree, await_gauges,
    gauges, hooked, of_environment, outcomes,
};

const THREADS: u64 = 4;

/// Runs `each` so many times, on a few threads at once.
fn many(count: u64, each: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    each(number);
                }
            });
        }
    });
}

/// Leaves, in each of the ways in which clients leave.
fn leave(visitor: Visitor, number: u64) {
    match number % 3 {
        0 => drop(visitor),
        _ => visitor.raw.reset(),
    }
}

/// Logs in one after the other: each is served, so no permit is missing.
fn still_serves(address: SocketAddr) {
    for number in 0..5 {
        let mut visitor = Visitor::arrive(address);
        assert_eq!(visitor.log_in(&Author::new(number)), Said::In);
    }
}

/// Two at once take twice the time of one, so no permit was added.
fn still_one_at_a_time(relay: &Relay, hooks: &Hooks) {
    hooks.set(&[("access_ms", "400")]);
    let start = Instant::now();
    let mut both = [0, 1].map(|_| Visitor::arrive(relay.address));
    for visitor in &mut both {
        visitor.ask(&Author::new(1));
    }
    for visitor in &mut both {
        assert_eq!(visitor.answer(), Said::In);
    }
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(800), "{took:?}");
}

#[test]
fn ten_thousand_logins_that_leave_while_they_wait_lose_no_permit() {
    let hooks = Hooks::new(&[("access_ms", "60000")]);
    let relay = hooked(of_environment(&[(AUTH_VARIABLE, "1")]), &hooks).start();
    let authors: Vec<Author> = (0..64).map(Author::new).collect();
    let vanish = |number: u64| {
        let mut visitor = Visitor::arrive(relay.address);
        visitor.ask(&authors[number as usize % authors.len()]);
        leave(visitor, number);
    };
    // First behind one who does not move: all of them wait, none is admitted.
    let mut holder = Visitor::arrive(relay.address);
    holder.ask(&Author::new(1));
    await_gauges(&relay, AUTH, [1, 1, 0, 0]);
    many(7_000, vanish);
    await_gauges(&relay, AUTH, [1, 1, 0, 0]);
    // Then while permits change hands all the time, so that they leave with an offer as well.
    hooks.set(&[("access_ms", "1")]);
    assert_eq!(holder.answer(), Said::In);
    many(3_000, vanish);
    await_gauges(&relay, AUTH, [1, 0, 0, 0]);
    hooks.clear();
    still_serves(relay.address);
    still_one_at_a_time(&relay, &hooks);
    agree(&relay);
    let left = outcomes(&relay, "disconnect");
    assert!(left >= 5_000, "only {left} left while they waited");
    assert_eq!(relay.metric("buzz_ws_panics_total", &[]), Some(0.0));
}

#[test]
fn ten_thousand_reads_whose_clients_leave_lose_no_permit() {
    let hooks = Hooks::new(&[("history_ms", "60000")]);
    let relay = hooked(of_environment(&[(HISTORY_VARIABLE, "1")]), &hooks).start();
    // Four a connection, which is as many as may wait at once.
    let vanish = |number: u64| {
        let mut visitor = Visitor::arrive(relay.address);
        for sub in 0..4 {
            visitor.send(&format!("[\"REQ\",\"{sub}\",{{}}]"));
        }
        leave(visitor, number);
    };
    let mut holder = Visitor::arrive(relay.address);
    holder.send("[\"REQ\",\"held\",{}]");
    await_gauges(&relay, HISTORY, [1, 1, 0, 0]);
    many(1_800, vanish);
    await_gauges(&relay, HISTORY, [1, 1, 0, 0]);
    hooks.set(&[("history_ms", "1")]);
    holder.expect("[\"EOSE\",\"held\",[\"finish\"]]");
    many(700, vanish);
    await_gauges(&relay, HISTORY, [1, 0, 0, 0]);
    // Each is served, and one at a time.
    hooks.set(&[("history_ms", "300")]);
    let start = Instant::now();
    let mut both = [0, 1].map(|_| Visitor::arrive(relay.address));
    for visitor in &mut both {
        visitor.send("[\"REQ\",\"one\",{}]");
    }
    for visitor in &mut both {
        visitor.expect("[\"EOSE\",\"one\",[\"finish\"]]");
    }
    assert!(start.elapsed() >= Duration::from_millis(600));
    await_gauges(&relay, HISTORY, [1, 0, 0, 0]);
    drop(holder);
    drop(both);
    relay.await_metric("buzz_subscriptions_active", &[], |left| left == 0.0);
    assert_eq!(gauges(&relay, HISTORY).waiting, 0);
    agree(&relay);
}
