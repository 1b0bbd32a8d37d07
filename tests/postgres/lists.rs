//! The access lists of the database, one truth for all relays.

use crate::common::raw::{CLOSE, Raw};
use crate::common::{Author, Client, Launch, now};
use crate::{cluster, database, on};
use buzz_uring::secret::Secret;

fn access(launch: &Launch, args: &[&str]) {
    let launch = args
        .iter()
        .fold(launch.clone().arg("access"), |launch, arg| launch.arg(arg));
    launch.run().expect(0, &[]);
}

/// A client that logs in; what the relay says of it.
pub fn log_in(relay: std::net::SocketAddr, author: &Author) -> (Raw, bool, String) {
    let mut raw = Raw::connect(relay);
    raw.send(crate::common::raw::upgrade(&[]));
    let challenge = raw.expect_upgrade();
    let tags: [&[&str]; 2] = [
        &["relay", "ws://localhost:3000"],
        &["challenge", &challenge],
    ];
    let login = author.json(now(), 22_242, &tags, "");
    raw.send(crate::common::raw::text(&format!("[\"AUTH\",{login}]")));
    let answer = raw.message();
    let accepted = answer[2].as_bool().expect("a verdict");
    (
        raw,
        accepted,
        answer[3].as_str().expect("a reason").to_owned(),
    )
}

fn members_only(url: &Secret) -> Launch {
    on(url).set("BUZZ_REQUIRE_RELAY_MEMBERSHIP", true)
}

#[tokio::test]
async fn a_ban_on_one_relay_ends_the_connections_on_every_other() {
    let Some(cluster) = cluster() else { return };
    let url = database(cluster);
    let (here, there) = (members_only(&url), members_only(&url));
    let relays = [here.start(), there.start()];
    let (ada, ben) = (Author::new(1), Author::new(2));
    let (_, accepted, reason) = log_in(relays[1].address, &ada);
    assert!(!accepted && reason.starts_with("restricted:"), "{reason}");
    // Told to one relay, true on the other.
    access(&here, &["add-member", &ada.pubkey_hex(), &ben.pubkey_hex()]);
    let (mut banned, accepted, _) = log_in(relays[1].address, &ada);
    assert!(accepted);
    let (mut other, accepted, _) = log_in(relays[1].address, &ben);
    assert!(accepted);
    access(&here, &["ban", &ada.pubkey_hex()]);
    let frame = banned.frame();
    assert_eq!(frame.opcode, CLOSE);
    assert_eq!(frame.close().0, Some(1008));
    let (_, accepted, reason) = log_in(relays[1].address, &ada);
    assert!(!accepted && reason.starts_with("blocked:"), "{reason}");
    // Its events are refused, whoever sends them and of whatever kind; others stay.
    for kind in [1, 20_001] {
        let event = ada.json::<&str>(now(), kind, &[], "");
        other.send(crate::common::raw::text(&format!("[\"EVENT\",{event}]")));
        let answer = other.message();
        assert_eq!(answer[2], false, "{answer}");
        assert!(
            answer[3].as_str().unwrap().starts_with("blocked:"),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn lists_can_be_edited_with_and_without_a_relay() {
    let Some(cluster) = cluster() else { return };
    let url = database(cluster);
    let launch = on(&url);
    let key = Author::new(1).pubkey_hex();
    access(&launch, &["ban", &key]);
    let shown = launch.clone().arg("access").arg("list").run();
    assert!(shown.stdout.contains(&key), "{shown:#?}");
    let relay = launch.start();
    access(&launch, &["unban", &key]);
    let mut client = Client::connect(relay.address).await;
    let event = Author::new(1).json::<&str>(now(), 1, &[], "");
    assert_eq!(client.publish(&event).await, (true, String::new()));
}

#[tokio::test]
async fn a_login_is_few_statements() {
    let Some(cluster) = cluster() else { return };
    let relay = on(&database(cluster)).start();
    let statements = |least: f64| {
        relay.await_metric("buzz_db_statements_total", &[], |n| n >= least);
        relay
            .metric("buzz_db_statements_total", &[])
            .expect("it is there")
    };
    log_in(relay.address, &Author::new(1));
    let before = statements(1.0);
    for number in 1..=40 {
        let (_, accepted, reason) = log_in(relay.address, &Author::new(number));
        assert!(accepted, "{reason}");
    }
    let after = statements(before + 40.0);
    // The listener looks around now and then, too.
    assert!(after - before <= 3.0 * 40.0, "{before} {after}");
}
