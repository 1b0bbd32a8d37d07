//! SIGHUP at every moment of a relay's life, and what a service manager is told of it.

use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;

use super::{File, REFUSED, TAKEN, hang_up, info, lines, says};
use crate::common::{Author, Client, Hooks, Launch, WAIT, get, hooked, now, until};

#[test]
fn without_a_file_there_is_nothing_to_read_and_the_relay_goes_on() {
    let relay = Launch::new().start();
    relay.signal(Signal::HUP);
    until("it is told", || {
        let text = "there is no settings file to read again";
        relay.output().contains(text).then_some(())
    });
    assert_eq!(get(relay.address, "/health", &[]).status, 200);
    relay.stop().expect(0, &[]);
}

#[test]
fn one_that_comes_during_the_start_is_answered_after_it() {
    let hooks = Hooks::new(&[("start_ms", "1500")]);
    let file = File::new("BUZZ_NAME=before\nBUZZ_LOG=debug");
    let mut process = hooked(file.launch(), &hooks).spawn();
    until("signals are caught", || {
        process.output().contains("the relay starts").then_some(())
    });
    file.write("BUZZ_NAME=after\nBUZZ_LOG=debug");
    process.signal(Signal::HUP);
    let line = process.wait_ready().expect("it starts all the same");
    let relay = crate::common::Relay::new(process, line);
    until("it is read again", || {
        (info(&relay)["name"] == "after").then_some(())
    });
    relay.stop().expect(0, &[TAKEN]);
}

#[test]
fn one_that_comes_during_a_drain_does_not_end_it() {
    let file = File::new("BUZZ_DRAIN_GRACE_MS=1500\nBUZZ_NAME=before");
    let launch = file.launch().unset("BUZZ_DRAIN_GRACE_MS");
    let mut relay = launch.start();
    relay.signal(Signal::TERM);
    until("it drains", || {
        (relay.status()["drain"]["state"] == "grace").then_some(())
    });
    file.reread(
        &relay,
        "BUZZ_DRAIN_GRACE_MS=0\nBUZZ_NAME=after\nBUZZ_LOG=debug",
    );
    assert_eq!(relay.status()["drain"]["state"], "grace");
    relay.signal(Signal::HUP);
    let exit = relay.wait_exit(WAIT);
    exit.expect(0, &["the relay has stopped"]);
    assert!(!exit.stderr.contains("a second signal"), "{exit:#?}");
}

#[test]
fn of_two_in_one_instant_the_second_is_not_lost() {
    let file = File::new("BUZZ_NAME=0");
    let relay = file.launch().start();
    for round in 1..=30 {
        relay.signal(Signal::HUP);
        file.write(&format!("BUZZ_NAME={round}"));
        relay.signal(Signal::HUP);
        relay.signal(Signal::HUP);
        until("the last one counts", || {
            (info(&relay)["name"] == round.to_string()).then_some(())
        });
    }
    relay.stop().expect(0, &[]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_them_costs_no_client_anything() {
    let file = File::new("BUZZ_NAME=0");
    let relay = file.launch().start();
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(Client::connect(relay.address).await);
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let storm = scope.spawn(|| {
            let mut round = 0;
            while !over.load(Ordering::Relaxed) {
                round += 1;
                // Right, wrong, and with another rate.
                file.write(match round % 3 {
                    0 => "BUZZ_NAME=a",
                    1 => "BUZZ_NAME=b\njunk",
                    _ => "BUZZ_RATE_MESSAGES_PER_SECOND=1000000",
                });
                relay.signal(Signal::HUP);
                std::thread::yield_now();
            }
        });
        let publishing = async {
            for round in 0..150 {
                for (number, client) in clients.iter_mut().enumerate() {
                    let text = format!("{round} of {number}");
                    let event = Author::new(1).json::<&str>(now(), 1, &[], &text);
                    client.publish_all([&event]).await;
                }
            }
        };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(publishing));
        over.store(true, Ordering::Relaxed);
        storm.join().expect("a thread");
    });
    file.write("BUZZ_NAME=last");
    relay.signal(Signal::HUP);
    until("the last one counts", || {
        (info(&relay)["name"] == "last").then_some(())
    });
    let lines = lines(&relay.output());
    let count = |words| lines.iter().filter(|line| says(line, words)).count();
    assert!(count(TAKEN) > 5 && count(REFUSED) > 2, "{lines:#?}");
    assert_eq!(clients[0].fetch("{\"limit\":1000}").await.len(), 600);
    relay.stop().expect(0, &[]);
}

#[test]
fn a_service_manager_is_told_of_each() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    manager.set_read_timeout(Some(WAIT)).expect("a time");
    let heard = || {
        let mut buffer = [0; 512];
        let length = manager.recv(&mut buffer).expect("a word");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let file = File::new("BUZZ_DRAIN_GRACE_MS=1000");
    let launch = file.launch().unset("BUZZ_DRAIN_GRACE_MS");
    let mut relay = launch.set("NOTIFY_SOCKET", path.display()).start();
    assert_eq!(heard(), "READY=1\nSTATUS=serving");
    for text in ["BUZZ_NAME=a", "junk"] {
        file.reread(&relay, text);
        let words = heard();
        let time = words
            .strip_prefix("RELOADING=1\nMONOTONIC_USEC=")
            .and_then(|rest| rest.split_once('\n'));
        let (time, status) = time.expect(&words);
        assert!(time.parse::<u64>().is_ok_and(|time| time > 0), "{words}");
        assert_eq!(status, "STATUS=reading the settings again");
        assert_eq!(heard(), "READY=1\nSTATUS=serving");
    }
    relay.signal(Signal::TERM);
    assert!(heard().starts_with("STOPPING=1\n"));
    hang_up(&relay);
    // It is not ready again.
    assert!(heard().starts_with("STATUS="), "nothing but the drain");
    relay.wait_exit(WAIT).expect(0, &[]);
}
