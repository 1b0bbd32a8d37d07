//! Who is let in: logins (NIP-42), the access lists and the command that edits them, and what is
//! served to some only (NIP-59, NIP-70).

#[path = "../common/mod.rs"]
mod common;

mod command;
mod lists;
mod login;
mod private;

use serde_json::{Value, json};

use common::raw::{self, Raw};
use common::{Author, Exit, Launch, Relay, id_of, now};

/// What logins name; the default of `BUZZ_RELAY_URL`.
const URL: &str = "ws://localhost:3000";

/// The outcomes of a login.
const OUTCOMES: [&str; 10] = [
    "success",
    "invalid",
    "banned",
    "allowlist_denied",
    "not_relay_member",
    "check_error",
    "concurrency_limit",
    "timeout",
    "disconnect",
    "shutdown",
];

/// A client that sees every frame, and the challenge it was given.
struct Peer {
    raw: Raw,
    challenge: String,
}

impl Peer {
    fn connect(relay: &Relay) -> Peer {
        let mut raw = Raw::connect(relay.address);
        raw.send(raw::upgrade(&[]));
        assert_eq!(raw.answer_head().status, 101);
        let first = raw.message();
        assert_eq!(first[0], "AUTH", "{first}");
        let challenge = first[1].as_str().expect("a challenge").to_owned();
        Peer { raw, challenge }
    }

    /// Connects and logs in.
    fn of(relay: &Relay, author: &Author) -> Peer {
        let mut peer = Peer::connect(relay);
        assert_eq!(peer.login(author), (true, String::new()));
        peer
    }

    fn send(&mut self, text: &str) {
        self.raw.send(raw::text(text));
    }

    #[track_caller]
    fn next(&mut self) -> Value {
        self.raw.message()
    }

    /// A login of this author on this connection.
    fn signed(&self, author: &Author) -> String {
        let tags: [&[&str]; 2] = [&["relay", URL], &["challenge", &self.challenge]];
        author.json(now(), 22_242, &tags, "")
    }

    #[track_caller]
    fn login(&mut self, author: &Author) -> (bool, String) {
        let event = self.signed(author);
        self.auth(&event)
    }

    #[track_caller]
    fn auth(&mut self, event: &str) -> (bool, String) {
        self.send(&format!("[\"AUTH\",{event}]"));
        self.answer_to(event)
    }

    #[track_caller]
    fn publish(&mut self, event: &str) -> (bool, String) {
        self.send(&format!("[\"EVENT\",{event}]"));
        self.answer_to(event)
    }

    #[track_caller]
    fn answer_to(&mut self, event: &str) -> (bool, String) {
        let answer = self.next();
        assert_eq!(answer[0], "OK", "{answer}");
        assert_eq!(answer[1], id_of(event), "{answer}");
        let text = answer[3].as_str().expect("a text").to_owned();
        (answer[2].as_bool().expect("true or false"), text)
    }

    /// Ids of what a filter gives; the subscription stays.
    #[track_caller]
    fn req(&mut self, sub: &str, filter: &str) -> Vec<String> {
        self.send(&format!("[\"REQ\",\"{sub}\",{filter}]"));
        let mut ids = Vec::new();
        loop {
            let message = self.next();
            if message[0] == "EOSE" {
                return ids;
            }
            assert_eq!(message[0], "EVENT", "{message}");
            ids.push(message[2]["id"].as_str().expect("an id").to_owned());
        }
    }

    #[track_caller]
    fn count(&mut self, filter: &str) -> u64 {
        self.send(&format!("[\"COUNT\",\"count\",{filter}]"));
        let answer = self.next();
        assert_eq!(answer[0], "COUNT", "{answer}");
        answer[2]["count"].as_u64().expect("a number")
    }

    /// Proves that the connection is open, and that nothing came that was not read.
    #[track_caller]
    fn expect_open(&mut self) {
        self.raw.send(raw::frame(0x80 | raw::PING, b"open?"));
        let frame = self.raw.frame();
        assert_eq!(
            (frame.opcode, &frame.payload[..]),
            (raw::PONG, &b"open?"[..]),
            "{frame:?}"
        );
    }

    /// Messages up to the relay's close, its code and its reason.
    #[track_caller]
    fn closed(&mut self) -> (Vec<String>, Option<u16>, String) {
        self.raw.messages_until_close()
    }
}

/// Runs `buzz-uring access` on the folder of `launch`.
fn access<S: AsRef<str>>(launch: &Launch, args: &[S]) -> Exit {
    let launch = launch.clone().arg("access");
    args.iter()
        .fold(launch, |launch, arg| launch.arg(arg.as_ref()))
        .run()
}

/// As [`access`], which must succeed. Returns what it printed.
#[track_caller]
fn edit<S: AsRef<str>>(launch: &Launch, args: &[S]) -> String {
    let exit = access(launch, args);
    exit.expect(0, &[]);
    assert_eq!(exit.stderr, "", "{exit:#?}");
    exit.stdout
}

/// How often a login ended so.
fn outcome(relay: &Relay, outcome: &str) -> f64 {
    let label = format!("outcome=\"{outcome}\"");
    let found = relay.metric("buzz_auth_outcomes_total", &[&label]);
    found.expect("a series")
}

/// Waits until the outcomes are these and no others, and the attempts are their sum.
#[track_caller]
fn expect_outcomes(relay: &Relay, expected: &[(&str, u32)]) {
    let sum: u32 = expected.iter().map(|(_, count)| count).sum();
    relay.await_metric("buzz_auth_outcomes_total", &[], |found| {
        found >= f64::from(sum)
    });
    for name in OUTCOMES {
        let wanted = expected.iter().find(|(other, _)| *other == name);
        let wanted = wanted.map_or(0, |(_, count)| *count);
        assert_eq!(outcome(relay, name), f64::from(wanted), "{name}");
    }
    let attempts = relay.metric("buzz_auth_attempts_total", &["method=\"nip42\""]);
    assert_eq!(attempts, Some(f64::from(sum)));
}

/// A note that nobody else has sent.
fn note(author: &Author, content: &str) -> String {
    author.json::<&str>(now(), 1, &[], content)
}

/// `access list --json`, by key.
fn listed(launch: &Launch) -> Vec<Value> {
    let lines = edit(launch, &["list", "--json"]);
    let parsed = lines.lines().map(serde_json::from_str);
    parsed.map(|line| line.expect("JSON")).collect()
}

/// A line of `access list --json`.
fn entry(author: &Author, lists: [bool; 3]) -> Value {
    let [banned, allowed, member] = lists;
    json!({
        "key": author.pubkey_hex(), "banned": banned, "allowed": allowed, "member": member,
    })
}
