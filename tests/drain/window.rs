//! The window: closes spread over it, whoever leaves early, and what an operator is told meanwhile.

use std::thread;
use std::time::{Duration, Instant};

use super::{counts, ends_clean, expect_restart, launch, lines, millis, summary, terminate};
use crate::common::raw::{self, CLOSE, Raw};
use crate::common::{Author, Launch, get, id_of, now, until};

#[test]
fn closes_are_spread_over_the_window() {
    const CLIENTS: usize = 100;
    const WINDOW: Duration = millis(2_000);
    let mut relay = launch(3)
        .set("BUZZ_DRAIN_JITTER_MS", WINDOW.as_millis())
        .start();
    let clients: Vec<Raw> = (0..CLIENTS).map(|_| Raw::upgraded(relay.address)).collect();
    let start = terminate(&relay);
    let readers = clients.into_iter().map(|mut client| {
        thread::spawn(move || {
            let frame = client.frame();
            let at = start.elapsed();
            assert_eq!(frame.close(), super::RESTART);
            let _ = client.try_send(raw::frame(0x80 | CLOSE, &frame.payload));
            client.expect_end();
            at
        })
    });
    let readers: Vec<_> = readers.collect();
    let seen = readers
        .into_iter()
        .map(|reader| reader.join().expect("a close"));
    let seen: Vec<Duration> = seen.collect();
    let exit = ends_clean(&mut relay);
    assert_eq!(counts(&exit), (CLIENTS as u64, 0, 0));
    let last = summary(&exit)["last_close_ms"].as_u64().expect("a number");
    assert!(
        (1_900..=2_100).contains(&last),
        "the last close at {last} ms"
    );
    // Ten closes are due in each tenth; a busy machine moves some into the next.
    let mut tenths = [0; 10];
    for at in &seen {
        let tenth = at.as_millis() * 10 / WINDOW.as_millis();
        tenths[(tenth as usize).min(9)] += 1;
    }
    assert!(
        tenths.iter().all(|count| (2..=30).contains(count)),
        "{tenths:?}"
    );
    let told = lines(&exit).filter(|line| line["message"] == "closing connections");
    assert!((5..=11).contains(&told.count()), "a line for each tenth");
}

#[test]
fn a_client_is_served_until_its_own_time() {
    let mut relay = launch(1).set("BUZZ_DRAIN_JITTER_MS", "1500").start();
    let mut clients: Vec<Raw> = (0..30).map(|_| Raw::upgraded(relay.address)).collect();
    for client in &mut clients {
        client.send(raw::text(r#"["REQ","all",{"limit":0}]"#));
        assert_eq!(client.frame().text(), r#"["EOSE","all"]"#);
    }
    let author = Author::new(1);
    let event = author.json::<&str>(now(), 1, &[], "in the window");
    terminate(&relay);
    // Whoever is told first, others are still there.
    let first = until("somebody is told", || {
        let told = relay.status()["drain"]["acknowledged"].as_u64()?;
        (told > 0).then_some(told)
    });
    assert!(first < 30, "{first} were told at once");
    let mut served = 0;
    let mut sent = false;
    for client in &mut clients {
        if !sent
            && client
                .try_send(raw::text(&format!("[\"EVENT\",{event}]")))
                .is_ok()
        {
            let frame = client.frame();
            if frame.opcode == CLOSE {
                let _ = client.try_send(raw::frame(0x80 | CLOSE, &frame.payload));
                continue;
            }
            sent = true;
            let answers = [frame.text().to_owned(), client.frame().text().to_owned()];
            let ok = format!("[\"OK\",\"{}\",true,\"\"]", id_of(&event));
            assert!(answers.contains(&ok), "{answers:?}");
            served += 1;
            assert!(expect_restart(client).is_empty());
        } else {
            served += usize::from(!expect_restart(client).is_empty());
        }
    }
    assert!(served > 1, "{served} were served in the window");
    assert_eq!(counts(&ends_clean(&mut relay)), (30, 0, 0));
}

#[test]
fn whoever_leaves_before_its_time_is_gone_and_the_end_does_not_wait() {
    let mut relay = launch(2).set("BUZZ_DRAIN_JITTER_MS", "20000").start();
    let mut clients: Vec<Raw> = (0..20).map(|_| Raw::upgraded(relay.address)).collect();
    let start = terminate(&relay);
    until("the closes have begun", || {
        (relay.status()["drain"]["state"] == "closing").then_some(())
    });
    for client in &mut clients {
        client.send(raw::close(1000, "bye"));
        while client.frame().opcode != CLOSE {}
        client.expect_end();
    }
    let exit = ends_clean(&mut relay);
    assert!(start.elapsed() < Duration::from_secs(15));
    let (acknowledged, cancelled, gone) = counts(&exit);
    assert_eq!((acknowledged + gone, cancelled), (20, 0));
    assert!(gone >= 10, "{gone} left by themselves");
}

#[test]
fn with_nobody_connected_it_ends_right_after_the_grace() {
    let mut relay = launch(2)
        .set("BUZZ_DRAIN_JITTER_MS", "20000")
        .set("BUZZ_DRAIN_GRACE_MS", "1000")
        .start();
    let start = terminate(&relay);
    let exit = ends_clean(&mut relay);
    assert!(start.elapsed() >= Duration::from_secs(1));
    assert!(
        start.elapsed() < Duration::from_secs(6),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(counts(&exit), (0, 0, 0));
}

#[test]
fn status_and_metrics_follow() {
    let mut relay = launch(2)
        .set("BUZZ_DRAIN_GRACE_MS", "500")
        .set("BUZZ_DRAIN_JITTER_MS", "2000")
        .start();
    let mut clients: Vec<Raw> = (0..10).map(|_| Raw::upgraded(relay.address)).collect();
    assert_eq!(relay.status()["drain"]["state"], "none");
    let remaining = "buzz_drain_connections_remaining";
    assert_eq!(relay.metric(remaining, &[]), Some(0.0));
    terminate(&relay);
    until("the grace", || {
        (relay.status()["drain"]["state"] == "grace").then_some(())
    });
    until("the closes", || {
        let drain = relay.status()["drain"].clone();
        // Each shard counts its own.
        (drain["state"] == "closing" && drain["connections"] == 10).then(|| {
            assert_eq!(drain["requested_by"], "SIGTERM");
            assert_eq!(drain["window_ms"], 2_000);
        })
    });
    assert_eq!(get(relay.health, "/_readiness", &[]).status, 503);
    relay.await_metric(remaining, &[], |count| count > 0.0);
    let acknowledged = ["how=\"acknowledged\""];
    relay.await_metric("buzz_drain_closes_total", &acknowledged, |count| {
        count >= 1.0
    });
    for client in &mut clients {
        expect_restart(client);
    }
    assert_eq!(counts(&ends_clean(&mut relay)), (10, 0, 0));
}

#[test]
fn a_budget_that_does_not_add_up_is_refused_with_the_sum() {
    let start = Instant::now();
    let exit = Launch::new()
        .set("BUZZ_DRAIN_JITTER_MS", "10000")
        .set("BUZZ_HARD_STOP_MS", "16999")
        .run();
    exit.expect(64, &["BUZZ_HARD_STOP_MS", "16999", "17000"]);
    assert!(start.elapsed() < Duration::from_secs(10));
}
