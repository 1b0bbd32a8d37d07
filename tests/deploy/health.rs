//! `buzz-uring health`, as a container engine asks it.

use crate::common::{Launch, Relay, quiet_address, until};

fn health(relay: &Relay, more: &[&str]) -> (i32, String) {
    let launch = Launch::new()
        .set("BUZZ_HEALTH_PORT", relay.health.port())
        .arg("health");
    let launch = more.iter().fold(launch, |launch, word| launch.arg(word));
    let exit = launch.run();
    (exit.code(), exit.stdout + &exit.stderr)
}

#[test]
fn the_exit_code_says_whether_it_lives_and_whether_it_wants_traffic() {
    let relay = Launch::new().set("BUZZ_DRAIN_GRACE_MS", "20000").start();
    assert_eq!(health(&relay, &[]), (0, "ok\n".to_owned()));
    let (code, said) = health(&relay, &["--ready"]);
    assert_eq!((code, said.contains("ready")), (0, true), "{said}");

    relay.signal(rustix::process::Signal::TERM);
    until("it drains", || {
        (relay.status()["lifecycle"] == "draining").then_some(())
    });
    assert_eq!(health(&relay, &[]).0, 0, "a relay that drains lives");
    let (code, said) = health(&relay, &["--ready"]);
    assert_eq!((code, said.contains("shutting_down")), (1, true), "{said}");
}

#[test]
fn nobody_there_is_no_health() {
    let port = quiet_address().port();
    let launch = Launch::new().set("BUZZ_HEALTH_BIND", quiet_address().ip());
    let exit = launch.set("BUZZ_HEALTH_PORT", port).arg("health").run();
    exit.expect(1, &["no answer", "/_liveness"]);
    // A free port would be another one for each process.
    let exit = Launch::new().arg("health").run();
    exit.expect(1, &["BUZZ_HEALTH_PORT"]);
}
