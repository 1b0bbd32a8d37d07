//! EVENT: the checks of a published event, in the order of what they cost, and its answer.
//!
//! An event goes one way: shape (done by the parser), policy, id, known already, signature, store,
//! commit, `OK`. The store's writer hands committed events to every shard itself, in sequence
//! order; events that are not stored go to the shards from here.

use std::rc::Rc;
use std::sync::Arc;

use crate::limits::MAILBOX_PAUSE;
use crate::metrics::EventOutcome;
use crate::nostr::event::Event;
use crate::nostr::kind::{self, Class};
use crate::nostr::message::{self, Prefix, Reason};
use crate::nostr::{pow, repost, vanish};
use crate::shard::Shard;
use crate::shard::conn::Conn;
use crate::shard::runtime;
use crate::shard::session::Flow;
use crate::store::embedded::Access;
use crate::store::{Job, Outcome, Reader, StoreError, StoreErrorKind};

/// Checks a published event and passes it on, or answers why not.
pub fn event(shard: &Rc<Shard>, conn: &Rc<Conn>, event: Event) -> Flow {
    if let Err(reason) = policy(shard, conn, &event) {
        refuse(shard, conn, &event, &reason);
        return Flow::Go;
    }
    if !event.id_matches() {
        let reason = Reason::new(Prefix::Invalid, "the id is not the hash of the event");
        refuse(shard, conn, &event, &reason);
        return Flow::Go;
    }
    // What the store knows is looked up before the signature is checked: it costs a thirtieth.
    if let Some(outcome) = screened(shard, &event) {
        answer(shard, conn, &event, &outcome);
        return Flow::Go;
    }
    if !shard.verifier.borrow_mut().verify(&event) {
        let reason = Reason::new(Prefix::Invalid, "the signature does not verify");
        refuse(shard, conn, &event, &reason);
        return Flow::Turn;
    }
    let event = Arc::new(event);
    if event.class() == Class::Ephemeral {
        match &shard.reader {
            Reader::Embedded(_) => ephemeral(shard, conn, &event),
            Reader::Postgres(reader) => {
                // It counts as a write until it is answered.
                conn.in_flight.set(conn.in_flight.get() + 1);
                let asked = reader.access(*event.pubkey());
                let task = ephemeral_of_somebody(shard.clone(), conn.clone(), event, asked);
                runtime::spawn(shard.guarded(conn.clone(), task));
            }
        }
    } else {
        let origin = shard.origin(conn);
        conn.in_flight.set(conn.in_flight.get() + 1);
        shard.submit(Job { event, origin });
    }
    Flow::Turn
}

/// What the store's state says of an event already.
fn screened(shard: &Shard, event: &Event) -> Option<Outcome> {
    let Reader::Embedded(reader) = &shard.reader else {
        // A question costs as much as a signature: the writer finds out.
        return None;
    };
    let screen = match reader.screen(event) {
        Ok(screen) => screen,
        Err(error) => {
            tracing::warn!(%error, "an event could not be looked up");
            return Some(Outcome::Failed(error));
        }
    };
    if let Some(reason) = screen.ban(event) {
        return Some(Outcome::Refused(reason));
    }
    match (screen.found, screen.gone) {
        (Some(found), _) if found.sig == *event.sig() => Some(Outcome::Duplicate),
        (Some(_), _) => Some(Outcome::SignatureDiffers),
        (None, gone) => gone.map(|gone| Outcome::Refused(gone.reason())),
    }
}

/// Answers what the store made of an event.
pub fn answer(shard: &Rc<Shard>, conn: &Rc<Conn>, event: &Event, outcome: &Outcome) {
    let (accepted, reason) = match outcome {
        Outcome::Stored { .. } => (true, None),
        Outcome::Duplicate => (
            true,
            Some(Reason::new(Prefix::Duplicate, "already have this event")),
        ),
        Outcome::Superseded => (
            false,
            Some(Reason::new(Prefix::Duplicate, "a newer version is stored")),
        ),
        Outcome::SignatureDiffers => (
            false,
            Some(Reason::new(
                Prefix::Invalid,
                "this id is stored with another signature",
            )),
        ),
        Outcome::Refused(reason) => (false, Some(reason.clone())),
        Outcome::Failed(error) => {
            let text = match error.kind() {
                StoreErrorKind::Full => "the store has no room, try again later",
                _ => "the event could not be stored, try again",
            };
            (false, Some(Reason::new(Prefix::Error, text)))
        }
    };
    let label = match outcome {
        Outcome::Stored { .. } => EventOutcome::Stored,
        Outcome::Duplicate | Outcome::Superseded => EventOutcome::Duplicate,
        _ => EventOutcome::Refused,
    };
    shard.metrics.events_received.of(label).increment(1);
    ok(shard, conn, event, accepted, reason.as_ref());
}

fn policy(shard: &Shard, conn: &Conn, event: &Event) -> Result<(), Reason> {
    if kind::is_never_stored(event.kind()) {
        let text = "events of this kind are for one peer and are not published";
        return Err(Reason::new(Prefix::Invalid, text));
    }
    let vanishes = event.kind() == kind::VANISH;
    if vanishes && !vanish::is_for(event, &shard.relay_url) {
        let text = "the request to vanish does not name this relay";
        return Err(Reason::fixed(Prefix::Invalid, text));
    }
    // NIP-62: a request to vanish is followed whatever its author's status.
    if !vanishes && shard.config().login_required() && !conn.is_authenticated() {
        return Err(Reason::new(Prefix::AuthRequired, "log in to publish"));
    }
    if event.is_protected() && !conn.has_key(event.pubkey()) {
        let text = "a protected event is accepted from its author only";
        let prefix = if conn.is_authenticated() {
            Prefix::Restricted
        } else {
            Prefix::AuthRequired
        };
        return Err(Reason::new(prefix, text));
    }
    let now = shard.unix_seconds();
    if event.created_at() > now.saturating_add(shard.config().created_at_future) {
        return Err(Reason::new(Prefix::Invalid, "created_at is too far ahead"));
    }
    if event.expiration().is_some_and(|expires| expires <= now) {
        return Err(Reason::fixed(Prefix::Invalid, "the event has expired"));
    }
    if vanishes {
        return Ok(());
    }
    let past = shard.config().created_at_past.unwrap_or(u64::MAX);
    if event.created_at() < now.saturating_sub(past) {
        return Err(Reason::new(Prefix::Invalid, "created_at is too long ago"));
    }
    let retention = &shard.config().retention;
    if retention.refuses(event.kind(), event.created_at(), now) {
        let text = "older than events of its kind are kept here";
        return Err(Reason::fixed(Prefix::Invalid, text));
    }
    if repost::embeds_protected(event) {
        let text = "a repost must not embed a protected event";
        return Err(Reason::fixed(Prefix::Invalid, text));
    }
    pow::check(event, shard.config().pow_difficulty_min)
}

/// As [`ephemeral`], where only a store elsewhere knows whether the author is banned.
async fn ephemeral_of_somebody(
    shard: Rc<Shard>,
    conn: Rc<Conn>,
    event: Arc<Event>,
    asked: impl Future<Output = Result<Access, StoreError>>,
) {
    let access = asked.await;
    conn.in_flight.set(conn.in_flight.get() - 1);
    conn.wake();
    match access {
        Ok(access) if access.banned => {
            let reason = Reason::fixed(Prefix::Blocked, "the author is banned");
            answer(&shard, &conn, &event, &Outcome::Refused(reason));
        }
        Ok(_) => ephemeral(&shard, &conn, &event),
        Err(error) => {
            tracing::warn!(%error, "an event's author could not be looked up");
            answer(&shard, &conn, &event, &Outcome::Failed(error));
        }
    }
}

fn ephemeral(shard: &Rc<Shard>, conn: &Rc<Conn>, event: &Arc<Event>) {
    if !shard.common.recent.insert(event.id()) {
        return answer(shard, conn, event, &Outcome::Duplicate);
    }
    shard.common.store.pass_on(event);
    let full = shard.broadcast(event);
    if full.is_empty() {
        return passed_on(shard, conn, event);
    }
    conn.in_flight.set(conn.in_flight.get() + 1);
    let task = wait_for_room(shard.clone(), conn.clone(), event.clone(), full);
    runtime::spawn(shard.guarded(conn.clone(), task));
}

/// Hands an event to the shards that had no room for it, as soon as they have, and answers it then.
/// The store's writer waits for them in the same way.
async fn wait_for_room(shard: Rc<Shard>, conn: Rc<Conn>, event: Arc<Event>, mut full: Vec<usize>) {
    while !full.is_empty() {
        runtime::sleep(MAILBOX_PAUSE).await;
        full.retain(|id| !shard.pass_on(*id, &event));
    }
    conn.in_flight.set(conn.in_flight.get() - 1);
    conn.wake();
    passed_on(&shard, &conn, &event);
}

fn passed_on(shard: &Rc<Shard>, conn: &Rc<Conn>, event: &Event) {
    let passed = shard.metrics.events_received.of(EventOutcome::Ephemeral);
    passed.increment(1);
    ok(shard, conn, event, true, None);
}

/// Refuses an event that the store's writer has no room for.
pub fn turn_away(shard: &Rc<Shard>, conn: &Rc<Conn>, event: &Event) {
    let reason = Reason::new(Prefix::Error, "the relay is busy, try again");
    refuse(shard, conn, event, &reason);
}

fn refuse(shard: &Rc<Shard>, conn: &Rc<Conn>, event: &Event, reason: &Reason) {
    shard
        .metrics
        .events_received
        .of(EventOutcome::Refused)
        .increment(1);
    ok(shard, conn, event, false, Some(reason));
}

fn ok(shard: &Rc<Shard>, conn: &Rc<Conn>, event: &Event, accepted: bool, reason: Option<&Reason>) {
    conn.send(shard, |batch| {
        batch.push_text(|out| message::write_ok(out, event.id(), accepted, reason));
    });
}
