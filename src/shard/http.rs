//! The plain HTTP answers of the public port: NIP-11, a page for people, health, refusals.
//!
//! Bodies are made once at start. Every answer ends its connection.

use std::rc::Rc;

use crate::metrics::UpgradeRefusal;
use crate::shard::Shard;
use crate::shard::conn::Conn;
use crate::ws::handshake::{self, CORS, Head, HeadError};

/// Content types of what is served.
const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
const NOSTR_JSON: &str = "application/nostr+json";

/// Seconds that a refused client is asked to wait.
pub const RETRY_AFTER_SECONDS: &str = "5";

/// What the public port serves, made once for all shards.
#[derive(Clone, Debug)]
pub struct Pages {
    /// The relay information document (NIP-11).
    pub info: String,
    /// What a browser shows.
    pub page: String,
    /// Content-Security-Policy of that page.
    pub policy: String,
}

/// Answers a request that asks for no WebSocket.
pub fn answer(shard: &Rc<Shard>, conn: &Rc<Conn>, head: &Head<'_>) {
    let (ready, readiness) = shard.common.lifecycle.stage().readiness();
    let pages = shard.pages();
    let reply = match (head.method, head.path()) {
        ("OPTIONS", _) => Reply::new(204, TEXT, ""),
        ("GET" | "HEAD", "/") if head.wants_nostr_json => Reply::new(200, NOSTR_JSON, &pages.info),
        ("GET" | "HEAD", "/") => Reply::new(200, HTML, &pages.page).under(&pages.policy),
        ("GET" | "HEAD", "/health" | "/_liveness") => Reply::new(200, TEXT, "ok"),
        ("GET" | "HEAD", "/_readiness") => {
            Reply::new(if ready { 200 } else { 503 }, JSON, readiness)
        }
        ("GET" | "HEAD", _) => Reply::new(404, TEXT, "the relay is at /"),
        _ => Reply::new(405, TEXT, "GET, HEAD or OPTIONS"),
    };
    let mut fields = CORS.to_vec();
    fields.push(("X-Content-Type-Options", "nosniff"));
    if let Some(policy) = reply.policy {
        fields.push(("Content-Security-Policy", policy));
        fields.push(("Referrer-Policy", "no-referrer"));
    }
    conn.finish_http(shard, |out| {
        if head.method == "HEAD" {
            let length = reply.body.len();
            handshake::write_response_head(out, reply.status, reply.kind, &fields, length);
        } else {
            let body = reply.body.as_bytes();
            handshake::write_response(out, reply.status, reply.kind, &fields, body);
        }
    });
}

/// Answers a request head that cannot be served.
pub fn refuse(shard: &Rc<Shard>, conn: &Rc<Conn>, error: HeadError) {
    let refused = shard.metrics.upgrades_refused.of(UpgradeRefusal::Malformed);
    refused.increment(1);
    conn.finish_http(shard, |out| handshake::write_head_error(out, error));
}

/// Answers an upgrade that comes at the wrong time, or from an address with too many.
pub fn unavailable(shard: &Rc<Shard>, conn: &Rc<Conn>, refusal: UpgradeRefusal) {
    shard.metrics.upgrades_refused.of(refusal).increment(1);
    let body = match refusal {
        UpgradeRefusal::Draining => crate::drain::REASON,
        UpgradeRefusal::Starting => "relay starting",
        UpgradeRefusal::AddressConnections => "too many connections from this address",
        UpgradeRefusal::AddressRate => "too many new connections from this address",
        _ => "relay full",
    };
    let of_address = [
        UpgradeRefusal::AddressConnections,
        UpgradeRefusal::AddressRate,
    ];
    let status = if of_address.contains(&refusal) {
        429
    } else {
        503
    };
    let extra = &[("Retry-After", RETRY_AFTER_SECONDS)];
    conn.finish_http(shard, |out| {
        handshake::write_response(out, status, TEXT, extra, body.as_bytes());
    });
}

struct Reply<'a> {
    status: u16,
    kind: &'static str,
    body: &'a str,
    policy: Option<&'a str>,
}

impl<'a> Reply<'a> {
    fn new(status: u16, kind: &'static str, body: &'a str) -> Reply<'a> {
        Reply {
            status,
            kind,
            body,
            policy: None,
        }
    }

    /// For a page that a browser shows.
    fn under(self, policy: &'a str) -> Reply<'a> {
        Reply {
            policy: Some(policy),
            ..self
        }
    }
}
