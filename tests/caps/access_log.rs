//! The access log: one JSON line for each login and each end of a connection, and nothing secret.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::common::raw;
use crate::common::{Author, Launch, now, until};
use crate::support::{AUTH, Hooks, Said, Visitor, agree, await_gauges, hooked, lines, login};

const FIELDS: [&str; 10] = [
    "client",
    "connection",
    "duration_ms",
    "level",
    "message",
    "outcome",
    "peer",
    "shard",
    "target",
    "timestamp",
];

#[test]
fn lines_have_the_documented_fields_and_nothing_secret() {
    let hooks = Hooks::new(&[]);
    let relay = hooked(Launch::new().set("BUZZ_LOG", "trace"), &hooks).start();
    let author = Author::new(1);
    let mut visitor = Visitor::arrive(relay.address);
    let peer = visitor.raw.address().to_string();
    let good = login(&author, &visitor.challenge, "ws://localhost:3000");
    visitor.raw.send(raw::text(&good));
    assert_eq!(visitor.answer(), Said::In);
    let bad = login(&author, "wrong", "ws://localhost:3000");
    visitor.raw.send(raw::text(&bad));
    assert!(matches!(visitor.answer(), Said::Refused(_)));
    let event = author.json::<&str>(now(), 1, &[], "what-nobody-may-log");
    visitor.send(&format!("[\"EVENT\",{event}]"));
    visitor.expect(&format!(
        "[\"OK\",\"{}\",true,\"\"]",
        crate::common::id_of(&event)
    ));
    visitor.raw.send(raw::close(1000, "bye"));
    let mut lost = Visitor::arrive(relay.address);
    hooks.set(&[("access_ms", "60000")]);
    lost.ask(&author);
    await_gauges(&relay, AUTH, [0, 1, 0, 0]);
    drop(lost);
    agree(&relay);

    let access = until("three logins and two ends", || {
        let found = lines(&relay.output(), |line| line["target"] == "access");
        (found.len() == 5).then_some(found)
    });
    for line in &access {
        let fields: BTreeSet<&str> = line
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        assert_eq!(fields, BTreeSet::from(FIELDS), "{line}");
        assert_eq!(line["level"], "INFO");
        // No proxy is trusted, so the client is the peer, without its port.
        let peer: std::net::SocketAddr = line["peer"].as_str().unwrap().parse().unwrap();
        assert_eq!(line["client"], peer.ip().to_string());
        assert!(
            line["duration_ms"].is_u64() && line["shard"].is_u64(),
            "{line}"
        );
        assert!(line["connection"].is_string(), "{line}");
    }
    let of_first: Vec<[&Value; 2]> = access
        .iter()
        .filter(|line| line["peer"] == peer)
        .map(|line| [&line["message"], &line["outcome"]])
        .collect();
    assert_eq!(
        of_first,
        [
            ["auth", "success"],
            ["auth", "denied/invalid"],
            ["connection ended", "client"],
        ]
    );
    let of_lost: Vec<[&Value; 2]> = access
        .iter()
        .filter(|line| line["peer"] != peer)
        .map(|line| [&line["message"], &line["outcome"]])
        .collect();
    assert_eq!(
        of_lost,
        [["auth", "denied/disconnect"], ["connection ended", "lost"]]
    );
    let connections: BTreeSet<String> = access
        .iter()
        .map(|line| line["connection"].to_string())
        .collect();
    assert_eq!(connections.len(), 2);

    // Nothing that the client sent, and nothing that could be used in its name.
    let exit = relay.stop();
    let auth: Value = serde_json::from_str(&good).unwrap();
    let parts = [
        auth[1]["sig"].as_str().unwrap(),
        auth[1]["id"].as_str().unwrap(),
        &visitor.challenge,
        &author.pubkey_hex(),
        "what-nobody-may-log",
    ];
    for part in parts {
        assert!(!exit.stderr.contains(part), "{part} was logged");
    }
}
