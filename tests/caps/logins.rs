//! Logins under the auth gate: who gets in, who is sent away, and that the counts say so.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::common::raw::{self, Raw};
use crate::common::{Author, Launch, WAIT, now, until};
use crate::support::{
    AUTH, AUTH_VARIABLE, Hooks, SLACK, Said, Visitor, agree, await_gauges, hooked, lines, login,
    of_environment, outcomes,
};

const CLIENTS: usize = 20;

#[test]
fn of_twenty_at_once_under_cap_one_one_passes_and_all_do_later() {
    let hooks = Hooks::new(&[("access_ms", "2500")]);
    let relay = hooked(of_environment(&[(AUTH_VARIABLE, "1")]), &hooks).start();
    let address = relay.address;
    let barrier = Arc::new(Barrier::new(CLIENTS));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let barrier = Arc::clone(&barrier);
            std::thread::spawn(move || {
                let author = Author::new(number as u64);
                let mut visitor = Visitor::arrive(address);
                let peer = visitor.raw.address();
                barrier.wait();
                let start = Instant::now();
                let said = visitor.log_in(&author);
                (author, peer, said, start.elapsed())
            })
        })
        .collect();
    let seen: Vec<_> = clients
        .into_iter()
        .map(|client| client.join().expect("a client"))
        .collect();

    let (passed, shed): (Vec<_>, Vec<_>) =
        seen.iter().partition(|(_, _, said, _)| *said == Said::In);
    assert_eq!((passed.len(), shed.len()), (1, CLIENTS - 1), "{:?}", {
        seen.iter()
            .map(|seen| (&seen.2, seen.3))
            .collect::<Vec<_>>()
    });
    assert!(
        passed[0].3 >= Duration::from_millis(2_500),
        "{:?}",
        passed[0].3
    );
    for (_, peer, said, took) in &shed {
        assert_eq!(*said, Said::BareClose, "{peer}");
        let bounds = Duration::from_millis(1_950)..Duration::from_secs(2) + SLACK;
        assert!(bounds.contains(took), "{peer} was shed after {took:?}");
    }

    hooks.clear();
    let later: Vec<_> = shed
        .iter()
        .map(|(author, ..)| {
            let mut visitor = Visitor::arrive(address);
            assert_eq!(visitor.log_in(author), Said::In);
            visitor
        })
        .collect();
    agree(&relay);
    let count = |name: &str, labels: &[&str]| relay.metric(name, labels).expect(name) as usize;
    assert_eq!(outcomes(&relay, "success"), CLIENTS);
    assert_eq!(outcomes(&relay, "concurrency_limit"), CLIENTS - 1);
    assert_eq!(count("buzz_auth_attempts_total", &[]), 2 * CLIENTS - 1);
    let of_gate = "gate=\"auth\"";
    assert_eq!(
        count("buzz_concurrency_sheds_total", &[of_gate, "\"timeout\""]),
        CLIENTS - 1
    );
    assert_eq!(count("buzz_concurrency_sheds_total", &[]), CLIENTS - 1);
    assert_eq!(
        count("buzz_concurrency_wait_seconds_count", &[of_gate]),
        2 * CLIENTS - 1
    );
    assert_eq!(
        count("buzz_concurrency_hold_seconds_count", &[of_gate]),
        CLIENTS
    );
    until("as many closes as sheds", || {
        (count("buzz_ws_closes_total", &["\"auth_shed\""]) == CLIENTS - 1).then_some(())
    });

    // The same, client by client, in the access log.
    let logins = |outcome: &str| {
        lines(&relay.output(), |line| {
            line["target"] == "access" && line["message"] == "auth" && line["outcome"] == outcome
        })
    };
    let sheds = until("a line for each shed", || {
        let found = logins("denied/concurrency_limit");
        (found.len() == CLIENTS - 1).then_some(found)
    });
    let mut logged: Vec<String> = sheds
        .iter()
        .map(|line| line["peer"].as_str().expect("a peer").to_owned())
        .collect();
    let mut met: Vec<String> = shed.iter().map(|(_, peer, ..)| peer.to_string()).collect();
    logged.sort_unstable();
    met.sort_unstable();
    assert_eq!(logged, met);
    for line in &sheds {
        let took = line["duration_ms"].as_u64().expect("a duration");
        assert!((1_950..5_000).contains(&took), "{line}");
    }
    until("a line for each success", || {
        (logins("success").len() == CLIENTS).then_some(())
    });
    drop(later);
    relay.stop().expect(0, &[]);
}

#[test]
fn while_a_login_waits_nothing_else_of_its_connection_is_read() {
    let hooks = Hooks::new(&[("access_ms", "60000")]);
    let relay = hooked(of_environment(&[]), &hooks).start();
    let mut visitor = Visitor::arrive(relay.address);
    visitor.ask(&Author::new(1));
    visitor.send("[\"REQ\",\"behind\",{\"limit\":0}]");
    await_gauges(&relay, AUTH, [0, 1, 0, 0]);
    // Another connection of the same shard or the other is served meanwhile.
    let mut other = Visitor::arrive(relay.address);
    other.send("[\"REQ\",\"other\",{\"limit\":0}]");
    other.expect("[\"EOSE\",\"other\"]");
    let subscriptions = relay.metric("buzz_subscriptions_active", &[]);
    assert_eq!(
        subscriptions,
        Some(1.0),
        "the frame behind the login was read"
    );
    hooks.clear();
    assert_eq!(visitor.answer(), Said::In);
    visitor.expect("[\"EOSE\",\"behind\"]");
    agree(&relay);
}

#[test]
fn only_real_logins_queue() {
    let hooks = Hooks::new(&[("access_ms", "60000")]);
    let relay = hooked(of_environment(&[(AUTH_VARIABLE, "1")]), &hooks).start();
    let mut holder = Visitor::arrive(relay.address);
    holder.ask(&Author::new(1));
    await_gauges(&relay, AUTH, [1, 1, 0, 0]);
    // What is wrong with the frame itself is told at once, however long the line is.
    let author = Author::new(2);
    let mut visitor = Visitor::arrive(relay.address);
    let start = Instant::now();
    let valid = login(&author, &visitor.challenge, "ws://localhost:3000");
    let forged = valid.replace("\"content\":\"\"", "\"content\":\"x\"");
    assert_ne!(forged, valid);
    for text in [
        login(&author, "another", "ws://localhost:3000"),
        login(&author, &visitor.challenge, "ws://elsewhere.example"),
        forged,
    ] {
        visitor.raw.send(raw::text(&text));
        let Said::Refused(reason) = visitor.answer() else {
            panic!("not refused: {text}");
        };
        assert!(reason.starts_with("auth-required: "), "{reason}");
    }
    assert!(start.elapsed() < Duration::from_secs(2), "they queued");
    hooks.clear();
    assert_eq!(holder.answer(), Said::In);
    assert_eq!(visitor.log_in(&author), Said::In);
    agree(&relay);
    assert_eq!(outcomes(&relay, "invalid"), 3);
    assert_eq!(outcomes(&relay, "success"), 2);
}

#[test]
fn every_attempt_has_one_outcome() {
    let hooks = Hooks::new(&[]);
    let launch = |name: &str| hooked(Launch::new().set(name, "true"), &hooks);
    let relay = launch("BUZZ_REQUIRE_AUTH").start();
    // One that never tries, one that only leaves, one that tries in vain, one that gets in twice.
    let mut never = Visitor::arrive(relay.address);
    drop(Visitor::arrive(relay.address));
    let mut vain = Visitor::arrive(relay.address);
    vain.raw.send(raw::text("[\"AUTH\",{\"id\":1}]"));
    vain.raw.frame();
    let mut twice = Visitor::arrive(relay.address);
    let author = Author::new(1);
    assert_eq!(twice.log_in(&author), Said::In);
    assert_eq!(twice.log_in(&author), Said::In);
    let start = Instant::now();
    assert_eq!(never.answer(), Said::BareClose);
    assert_eq!(vain.answer(), Said::BareClose);
    assert!(
        start.elapsed() > Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );
    agree(&relay);
    let of = |outcome| outcomes(&relay, outcome);
    assert_eq!(
        [
            of("timeout"),
            of("disconnect"),
            of("invalid"),
            of("success")
        ],
        [1, 1, 1, 2]
    );
    drop(twice);
    relay.stop().expect(0, &[]);

    for (name, outcome) in [
        ("BUZZ_PUBKEY_ALLOWLIST", "allowlist_denied"),
        ("BUZZ_REQUIRE_RELAY_MEMBERSHIP", "not_relay_member"),
    ] {
        let relay = launch(name).start();
        let mut visitor = Visitor::arrive(relay.address);
        let Said::Refused(reason) = visitor.log_in(&author) else {
            panic!("{name}: not refused");
        };
        assert!(reason.starts_with("restricted: "), "{reason}");
        agree(&relay);
        assert_eq!(outcomes(&relay, outcome), 1);
    }
}

#[test]
fn the_login_clock_stands_still_while_a_login_is_checked() {
    let hooks = Hooks::new(&[("access_ms", "6000")]);
    let launch = Launch::new().set("BUZZ_REQUIRE_AUTH", "true");
    let relay = hooked(launch, &hooks).start();
    let mut visitor = Visitor::arrive(relay.address);
    assert_eq!(visitor.log_in(&Author::new(1)), Said::In);
    visitor.expect_nothing_more();
    agree(&relay);
}

#[test]
fn a_restart_ends_those_who_wait_and_those_who_are_checked() {
    let hooks = Hooks::new(&[("access_ms", "60000")]);
    let mut relay = hooked(of_environment(&[(AUTH_VARIABLE, "1")]), &hooks).start();
    let mut holder = Visitor::arrive(relay.address);
    holder.ask(&Author::new(1));
    await_gauges(&relay, AUTH, [1, 1, 0, 0]);
    let mut waiter = Visitor::arrive(relay.address);
    waiter.ask(&Author::new(2));
    await_gauges(&relay, AUTH, [1, 1, 1, 0]);
    relay.signal(Signal::TERM);
    for visitor in [&mut holder, &mut waiter] {
        let (messages, code, reason) = visitor.raw.messages_until_close();
        assert_eq!(messages, [""; 0]);
        assert_eq!((code, reason.as_str()), (Some(1012), "relay restarting"));
    }
    let exit = relay.wait_exit(WAIT);
    exit.expect(0, &[]);
    let ended = lines(&exit.stderr, |line| line["message"] == "auth");
    let ended: Vec<&Value> = ended.iter().map(|line| &line["outcome"]).collect();
    assert_eq!(ended, ["denied/shutdown"; 2]);
}

#[test]
fn others_publish_and_read_while_logins_queue() {
    let hooks = Hooks::new(&[("access_ms", "60000")]);
    let relay = hooked(of_environment(&[(AUTH_VARIABLE, "1")]), &hooks).start();
    let mut waiting: Vec<Visitor> = (0..8).map(|_| Visitor::arrive(relay.address)).collect();
    for (number, visitor) in waiting.iter_mut().enumerate() {
        visitor.ask(&Author::new(number as u64));
    }
    let mut other = Raw::upgraded(relay.address);
    let event = Author::new(99).json::<&str>(now(), 1, &[], "meanwhile");
    let start = Instant::now();
    other.send(raw::text(&format!("[\"EVENT\",{event}]")));
    assert_eq!(other.message()[2], true);
    other.send(raw::text("[\"REQ\",\"all\",{}]"));
    assert_eq!(other.message()[0], "EVENT");
    assert_eq!(other.message()[0], "EOSE");
    let took = start.elapsed();
    assert!(took < Duration::from_millis(1_900), "they queued: {took:?}");
    hooks.clear();
    agree(&relay);
}
