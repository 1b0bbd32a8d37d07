//! `buzz-uring top`, in a terminal.

use crate::beside;
use crate::common::{Client, Hooks, Launch, hooked, quiet_address};
use crate::terminal::{ENTERS, LEAVES, Terminal};

#[tokio::test]
async fn it_shows_a_relay_until_a_key_is_pressed() {
    let relay = Launch::new().start();
    let mut client = Client::connect(relay.address).await;
    assert!(client.req("all", "{}").await.is_empty());
    for key in ["q", "\x1b", "\x03"] {
        let mut terminal = Terminal::run(&beside(&relay, &["top"]));
        for word in [
            "ready",
            "connections",
            "events/s",
            "shard",
            "history_reads",
            "auth",
            "embedded",
            "drain",
        ] {
            terminal.await_text(word, 0);
        }
        assert!(!terminal.is_restored(), "keys come one by one");
        terminal.press("x");
        terminal.press(key);
        let (code, seen) = terminal.ended();
        assert_eq!(code, Some(0), "{seen:?}");
        assert!(seen.contains(ENTERS), "{seen:?}");
        assert!(terminal.is_restored(), "after {key:?}");
    }
}

#[test]
fn a_relay_that_goes_is_told_and_asked_again() {
    let quiet = quiet_address();
    let launch = Launch::new()
        .set("BUZZ_HEALTH_BIND", quiet.ip())
        .set("BUZZ_HEALTH_PORT", quiet.port());
    let mut terminal = Terminal::run(&launch.clone().arg("top"));
    // Nobody is there yet.
    terminal.await_text("waiting", 0);
    terminal.await_text("refused", 0);
    let mut relay = launch.start();
    terminal.await_text("history_reads", 0);
    let before = terminal.seen().len();
    relay.kill();
    terminal.await_text("GONE", before);
    let before = terminal.seen().len();
    let _relay = launch.start();
    terminal.await_text("ready", before);
    terminal.press("q");
    assert_eq!(terminal.ended().0, Some(0));
}

#[test]
fn no_terminal_is_too_large_and_none_keeps_its_size() {
    let relay = Launch::new().start();
    for (columns, rows) in [(u16::MAX, 24), (80, u16::MAX)] {
        let mut terminal = Terminal::sized(&beside(&relay, &["top"]), columns, rows);
        terminal.await_text("q quits", 0);
        let before = terminal.seen().len();
        // Nothing of it has changed, yet all of it is drawn again.
        terminal.resize(60, 20);
        terminal.await_text("q quits", before);
        let before = terminal.seen().len();
        terminal.resize(u16::MAX, u16::MAX);
        terminal.await_text("q quits", before);
        terminal.press("q");
        assert_eq!(terminal.ended().0, Some(0));
    }
}

#[test]
fn a_panic_leaves_the_terminal_as_it_was() {
    let relay = Launch::new().start();
    let hooks = Hooks::new(&[]);
    let launch = hooked(beside(&relay, &["top"]), &hooks);
    let mut terminal = Terminal::run(&launch);
    terminal.await_text("history_reads", 0);
    hooks.set(&[("panic_on", "top")]);
    let (code, seen) = terminal.ended();
    assert_eq!(code, Some(101), "{seen:?}");
    assert!(terminal.is_restored());
    let after = seen.split(LEAVES).nth(1).unwrap_or_default();
    assert!(after.contains("asked for by the hooks file"), "{seen:?}");
}

#[test]
fn without_a_terminal_it_says_so() {
    let exit = Launch::new().set("BUZZ_HEALTH_PORT", 1).arg("top").run();
    exit.expect(1, &["top needs a terminal", "status"]);
    assert_eq!(exit.stdout, "");
}
