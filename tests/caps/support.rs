//! What these tests share: a relay under a provider, a client that logs in, gauges of one scrape.

use std::net::SocketAddr;
use std::time::Duration;

use buzz_uring::limits;
use serde_json::Value;

use crate::common::raw::{self, CLOSE, Frame, PING, PONG, Raw, TEXT};
use crate::common::relay::metric_in;
use crate::common::{Author, Launch, Relay, get, now, until};
pub use crate::common::{Hooks, hooked};
use crate::launchdarkly::Fake;

pub const AUTH: &str = "auth";
pub const HISTORY: &str = "history_reads";
pub const AUTH_FLAG: &str = "buzz.relay.concurrency.auth";
pub const HISTORY_FLAG: &str = "buzz.relay.concurrency.history-reads";
pub const AUTH_VARIABLE: &str = "BUZZ_FEATURE_FLAG_BUZZ_RELAY_CONCURRENCY_AUTH";
pub const HISTORY_VARIABLE: &str = "BUZZ_FEATURE_FLAG_BUZZ_RELAY_CONCURRENCY_HISTORY_READS";

/// What a shed read is told, to the letter: clients and dashboards know it.
pub const SHED: &str = "error: history reads are at their limit, retry shortly";

/// A word that is in every secret.
pub const HUSH: &str = "hush-hush";

/// The period of the refresh.
pub const PERIOD: Duration = Duration::from_millis(limits::FLAGS_REFRESH_MS);
/// What a busy machine may add to a time that the relay promises.
pub const SLACK: Duration = Duration::from_secs(3);

/// A relay that knows its caps from LaunchDarkly, that is, from a fake. Every secret holds [`HUSH`],
/// and everything is logged.
pub fn of_launchdarkly(fake: &Fake) -> Launch {
    Launch::new()
        .set("BUZZ_FEATURE_FLAGS_PROVIDER", "launchdarkly")
        .set("BUZZ_LAUNCHDARKLY_SDK_KEY", format!("sdk-{HUSH}-0123"))
        .set("BUZZ_LAUNCHDARKLY_RELAY_PROXY_URL", fake.url_below(HUSH))
        .set("BUZZ_LOG", "trace")
}

/// A relay that knows its caps from its environment.
pub fn of_environment(caps: &[(&str, &str)]) -> Launch {
    let launch = Launch::new().set("BUZZ_FEATURE_FLAGS_PROVIDER", "environment");
    caps.iter()
        .fold(launch, |launch, (variable, cap)| launch.set(variable, cap))
}

/// A client that may log in.
pub struct Visitor {
    pub raw: Raw,
    pub challenge: String,
}

/// How the relay answered a login.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Said {
    /// `OK true` without a word.
    In,
    /// `OK false`, with this reason.
    Refused(String),
    /// A Close frame without a code, then the end of the stream, and nothing before it.
    BareClose,
}

impl Visitor {
    pub fn arrive(relay: SocketAddr) -> Visitor {
        let mut raw = Raw::connect(relay);
        raw.send(raw::upgrade(&[]));
        let challenge = raw.expect_upgrade();
        Visitor { raw, challenge }
    }

    /// Sends an AUTH, and does not wait.
    pub fn ask(&mut self, author: &Author) {
        let login = login(author, &self.challenge, "ws://localhost:3000");
        self.raw.send(raw::text(&login));
    }

    /// The answer to an AUTH, which is the next thing that comes.
    #[track_caller]
    pub fn answer(&mut self) -> Said {
        let frame = self.frame();
        if frame.opcode == CLOSE {
            assert_eq!(frame.payload, [0_u8; 0], "a close with a code");
            let _ = self.raw.try_send(raw::frame(0x80 | CLOSE, &[]));
            self.raw.expect_end();
            return Said::BareClose;
        }
        assert_eq!(frame.opcode, TEXT);
        let answer: Value = serde_json::from_str(frame.text()).expect("JSON");
        assert_eq!(answer[0], "OK", "{answer}");
        match (answer[2].as_bool(), answer[3].as_str()) {
            (Some(true), Some("")) => Said::In,
            (Some(false), Some(reason)) => Said::Refused(reason.to_owned()),
            _ => panic!("an odd answer: {answer}"),
        }
    }

    /// An AUTH and its answer.
    #[track_caller]
    pub fn log_in(&mut self, author: &Author) -> Said {
        self.ask(author);
        self.answer()
    }

    pub fn send(&mut self, text: &str) {
        self.raw.send(raw::text(text));
    }

    /// The next frame, pings apart: who waits for long gets some.
    #[track_caller]
    pub fn frame(&mut self) -> Frame {
        loop {
            let frame = self.raw.frame();
            if frame.opcode != PING {
                return frame;
            }
            self.raw.send(raw::frame(0x80 | PONG, &frame.payload));
        }
    }

    /// The next message must be this one.
    #[track_caller]
    pub fn expect(&mut self, text: &str) {
        assert_eq!(self.frame().text(), text);
    }

    /// Proves that nothing more has come: the answer to a ping sent now is next.
    #[track_caller]
    pub fn expect_nothing_more(&mut self) {
        self.raw.send(raw::frame(0x80 | PING, b"silence"));
        let frame = self.frame();
        assert_eq!(
            (frame.opcode, frame.payload.as_slice()),
            (PONG, &b"silence"[..]),
            "{frame:?}"
        );
    }
}

/// An AUTH message.
pub fn login(author: &Author, challenge: &str, relay_url: &str) -> String {
    let tags: [&[&str]; 2] = [&["relay", relay_url], &["challenge", challenge]];
    format!("[\"AUTH\",{}]", author.json(now(), 22_242, &tags, ""))
}

/// A gate's gauges, of one scrape.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Gauges {
    pub limit: u32,
    pub in_flight: u32,
    pub waiting: u32,
    pub debt: u32,
}

pub fn gauges(relay: &Relay, gate: &str) -> Gauges {
    let text = relay.metrics_text();
    let label = format!("gate=\"{gate}\"");
    let value = |name: &str| {
        let name = format!("buzz_concurrency_{name}");
        metric_in(&text, &name, &[&label]).unwrap_or_else(|| panic!("no {name}")) as u32
    };
    Gauges {
        limit: value("limit"),
        in_flight: value("in_flight"),
        waiting: value("waiting"),
        debt: value("debt"),
    }
}

/// Waits until a gate's gauges are limit, in flight, waiting, debt.
#[track_caller]
pub fn await_gauges(relay: &Relay, gate: &str, [limit, in_flight, waiting, debt]: [u32; 4]) {
    let wanted = Gauges {
        limit,
        in_flight,
        waiting,
        debt,
    };
    let mut last = None;
    let end = std::time::Instant::now() + crate::common::WAIT;
    while last != Some(wanted) {
        let late = std::time::Instant::now() >= end;
        assert!(!late, "{gate} stays {last:?} instead of {wanted:?}");
        std::thread::sleep(Duration::from_millis(20));
        last = Some(gauges(relay, gate));
    }
}

/// Waits until a gate has this limit (0: none), which must be within one refresh.
#[track_caller]
pub fn follows(relay: &Relay, gate: &str, limit: u32) {
    let start = std::time::Instant::now();
    let label = format!("gate=\"{gate}\"");
    relay.await_metric("buzz_concurrency_limit", &[&label], |now| {
        now == f64::from(limit)
    });
    let took = start.elapsed();
    assert!(took < PERIOD + SLACK, "followed after {took:?}");
}

/// Waits until so many refreshes have finished from now on.
#[track_caller]
pub fn refreshes(relay: &Relay, count: usize) {
    for _ in 0..count {
        let name = "buzz_feature_flags_last_refresh_timestamp_seconds";
        let last = relay.metric(name, &[]).expect(name);
        relay.await_metric(name, &[], |now| now > last);
    }
}

/// What `/_status` says of a gate.
pub fn status_of(relay: &Relay, gate: &str) -> Value {
    relay.status()["gates"][gate].clone()
}

/// Where a gate's limit comes from.
pub fn source(relay: &Relay, gate: &str) -> String {
    let status = status_of(relay, gate);
    status["source"].as_str().expect("a source").to_owned()
}

/// Attempts and outcomes, by outcome, once no login is in flight and they agree.
#[track_caller]
pub fn agree(relay: &Relay) {
    let mut seen = String::new();
    until(
        "as many outcomes as attempts, and nobody at the gates",
        || {
            let text = relay.metrics_text();
            let of = |name: &str| metric_in(&text, name, &[]).unwrap_or_default();
            let attempts = of("buzz_auth_attempts_total");
            let outcomes = of("buzz_auth_outcomes_total");
            let idle = of("buzz_concurrency_in_flight") + of("buzz_concurrency_waiting") == 0.0;
            seen = format!("{attempts} attempts, {outcomes} outcomes, idle: {idle}");
            (idle && attempts == outcomes).then_some(())
        },
    );
}

/// How many logins ended so.
pub fn outcomes(relay: &Relay, outcome: &str) -> usize {
    let label = format!("outcome=\"{outcome}\"");
    let count = relay.metric("buzz_auth_outcomes_total", &[&label]);
    count.expect("a known outcome") as usize
}

/// Lines that the relay has logged so far and that are of this target, or have this message.
pub fn lines(output: &str, has: impl Fn(&Value) -> bool) -> Vec<Value> {
    let lines = output
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    lines.filter(|line| has(line)).collect()
}

/// The lines that say that a limit has changed: gate, old, new, ceiling, source.
pub fn changes(relay: &Relay) -> Vec<[String; 5]> {
    let said = lines(&relay.output(), |line| {
        line["message"] == "concurrency limit changed"
    });
    let text = |line: &Value, name: &str| line[name].as_str().expect(name).to_owned();
    said.iter()
        .map(|line| ["gate", "old", "new", "ceiling", "source"].map(|name| text(line, name)))
        .collect()
}

/// Whether a line with this text was logged.
pub fn has_said(relay: &Relay, text: &str) -> bool {
    relay.output().contains(text)
}

/// Ends a relay of [`of_launchdarkly`], and looks for its secrets in all that it ever said.
#[track_caller]
pub fn end_quietly(relay: Relay, launch: &Launch, fake: &Fake) {
    agree(&relay);
    let mut said = vec![
        relay.status().to_string(),
        relay.metrics_text(),
        get(relay.address, "/", &[]).text(),
        get(relay.address, "/", &[("Accept", "application/nostr+json")]).text(),
    ];
    let exit = relay.stop();
    exit.expect(0, &[]);
    let checked = launch.clone().arg("check-config").run();
    checked.expect(0, &[]);
    assert!(
        checked.stdout.contains("launchdarkly"),
        "check-config says nothing of the provider: {}",
        checked.stdout
    );
    said.extend([exit.stdout, exit.stderr, checked.stdout, checked.stderr]);
    let host = fake.url();
    let host = host.trim_start_matches("http://");
    for text in said {
        for secret in [HUSH, host] {
            let found = text.lines().find(|line| line.contains(secret));
            assert!(found.is_none(), "{secret} is in: {found:?}");
        }
    }
}
