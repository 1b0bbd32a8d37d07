//! What one connection may send in a time: messages, and bytes of messages.
//!
//! A message above a rate is answered `rate-limited:` as what it was: an EVENT or AUTH by an `OK`, a
//! REQ or COUNT by a `CLOSED`. Nothing is done for it, so it is not charged: a client that slows down
//! to its rate is served at once. A CLOSE is obeyed all the same, for it gives something back, and a
//! ping is answered (RFC 6455 section 5.5.3 demands it); both are charged.

use std::rc::Rc;
use std::time::Instant;

use crate::bucket::{Bucket, Rate};
use crate::config::Rates;
use crate::metrics::{AuthOutcome, EventOutcome, RateKind};
use crate::nostr::message::{self, ClientMessage, MessageError, Prefix, Reason};
use crate::shard::conn::Conn;
use crate::shard::session::{self, Flow};
use crate::shard::{Shard, login};

/// A connection's two buckets.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    messages: Bucket,
    bytes: Bucket,
}

impl Meter {
    /// Full ones.
    pub fn new(now: Instant) -> Meter {
        let full = Bucket::new(now);
        Meter {
            messages: full,
            bytes: full,
        }
    }

    /// Takes a message of this many bytes if both rates allow it. Else says which does not, and
    /// nothing is taken.
    fn take(&mut self, rates: &Rates, bytes: usize, now: Instant) -> Result<(), RateKind> {
        let refuses = |bucket: Bucket, rate: Option<Rate>| {
            rate.is_some_and(|rate| !bucket.has_any(&rate, now))
        };
        if refuses(self.messages, rates.messages) {
            return Err(RateKind::Messages);
        }
        if refuses(self.bytes, rates.bytes) {
            return Err(RateKind::Bytes);
        }
        if let Some(rate) = &rates.messages {
            self.messages.take(rate, 1, now);
        }
        if let Some(rate) = &rates.bytes {
            self.bytes.take(rate, bytes as u64, now);
        }
        Ok(())
    }

    fn change(&mut self, was: &Rates, is: &Rates, now: Instant) {
        for (bucket, was, is) in [
            (&mut self.messages, was.messages, is.messages),
            (&mut self.bytes, was.bytes, is.bytes),
        ] {
            // Where there was no rate nothing was taken.
            if let (Some(was), Some(is)) = (was, is) {
                bucket.change_rate(&was, &is, now);
            }
        }
    }

    fn charge(&mut self, rates: &Rates, bytes: usize, now: Instant) {
        if let Some(rate) = &rates.messages {
            self.messages.charge(rate, 1, now);
        }
        if let Some(rate) = &rates.bytes {
            self.bytes.charge(rate, bytes as u64, now);
        }
    }
}

impl Conn {
    /// Takes a message of this many bytes from what the client may send.
    ///
    /// # Errors
    ///
    /// The rate that it is above.
    pub fn admit_message(&self, rates: &Rates, bytes: usize) -> Result<(), RateKind> {
        if *rates == Rates::default() {
            return Ok(());
        }
        self.metered(|meter, now| meter.take(rates, bytes, now))
    }

    /// Goes on at other rates.
    pub fn change_rates(&self, was: &Rates, is: &Rates, now: Instant) {
        // Where nothing was measured yet both are full, at any rate.
        if let Some(mut rare) = self.rare.take() {
            if let Some(meter) = &mut rare.meter {
                meter.change(was, is, now);
            }
            self.rare.set(Some(rare));
        }
    }

    /// Charges something that is served whatever the rates are.
    pub fn charge_message(&self, rates: &Rates, bytes: usize) {
        if *rates != Rates::default() {
            self.metered(|meter, now| meter.charge(rates, bytes, now));
        }
    }

    fn metered<T>(&self, work: impl FnOnce(&mut Meter, Instant) -> T) -> T {
        let now = Instant::now();
        // Before the first message both are full.
        self.with_rare(|rare| work(rare.meter.get_or_insert_with(|| Meter::new(now)), now))
    }
}

/// Answers a message that is above a rate.
pub fn refuse(shard: &Rc<Shard>, conn: &Rc<Conn>, text: &str, above: RateKind) -> Flow {
    shard.metrics.rate_limited.of(above).increment(1);
    let reason = match above {
        RateKind::Messages => TOO_MANY,
        RateKind::Bytes => TOO_LARGE,
    };
    let ok_false = |id: &[u8; 32]| {
        conn.send(shard, |batch| {
            batch.push_text(|out| message::write_ok(out, id, false, Some(&reason)));
        });
    };
    match ClientMessage::parse(text, &shard.parse_bounds) {
        Ok(ClientMessage::Event(event)) => {
            let refused = shard.metrics.events_received.of(EventOutcome::Refused);
            refused.increment(1);
            ok_false(event.id());
        }
        Ok(ClientMessage::Auth(event)) => {
            ok_false(event.id());
            login::Attempt::begin(shard, conn).end(AuthOutcome::Invalid);
        }
        Ok(ClientMessage::Close { sub }) => {
            conn.charge_message(&shard.config().rates, text.len());
            conn.remove_sub(shard, &sub);
        }
        Ok(ClientMessage::Req { sub, .. }) => {
            // It would have replaced this one, and no event may follow a CLOSED.
            conn.remove_sub(shard, &sub);
            closed(shard, conn, &sub, &reason);
        }
        Ok(ClientMessage::Count { sub, .. }) => closed(shard, conn, &sub, &reason),
        Err(error) => session::refuse(shard, conn, &instead(error, reason)),
    }
    Flow::Turn
}

/// What is wrong with a text counts less than that it came too soon.
fn instead(mut error: MessageError, reason: Reason) -> MessageError {
    match &mut error {
        MessageError::Event(event) | MessageError::Auth(event) => event.reason = reason,
        MessageError::Sub { reason: given, .. } | MessageError::Notice(given) => *given = reason,
    }
    error
}

const TOO_MANY: Reason = Reason::fixed(Prefix::RateLimited, "too many messages, slow down");
const TOO_LARGE: Reason = Reason::fixed(Prefix::RateLimited, "too many bytes, slow down");

fn closed(shard: &Rc<Shard>, conn: &Rc<Conn>, sub: &message::SubId, reason: &Reason) {
    conn.send(shard, |batch| {
        batch.push_text(|out| message::write_closed(out, sub, reason));
    });
}
