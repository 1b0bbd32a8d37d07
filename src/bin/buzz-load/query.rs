//! `query`: a REQ, its events, its EOSE. The ids must be exactly the right ones in the right order.

use std::io::Write as _;

use serde_json::{Map, Value};

use crate::flight::Flights;
use crate::net::Net;
use crate::questions::Question;
use crate::report::tenths;
use crate::requests::{Asking, At, Requests};
use crate::schedule::{Nanos, Schedule};
use crate::wire::{self, Message};

/// How answers are checked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Check {
    /// The ids and their order, against what the store was filled with.
    Exact,
    /// Only that times never rise: for a relay whose content is not known.
    Order,
}

/// A request in flight: what has come so far.
#[derive(Debug)]
struct Open {
    key: u64,
    question: usize,
    events: usize,
    last_time: u64,
    /// The first thing that was wrong.
    wrong: Option<&'static str>,
}

/// The state of the workload.
pub struct Query {
    questions: Vec<Question>,
    check: Check,
    /// Whether a CLOSE follows each EOSE.
    closes: bool,
    open: Vec<Vec<Open>>,
    next: u64,
    events: u64,
    event_bytes: u64,
    text: Vec<u8>,
}

impl Query {
    /// Asks the questions in turn, as the schedule says.
    pub fn asking(
        questions: Vec<Question>,
        check: Check,
        closes: bool,
        schedule: Schedule,
        connections: usize,
        window: usize,
    ) -> Asking<Query> {
        let query = Query {
            questions,
            check,
            closes,
            open: (0..connections).map(|_| Vec::new()).collect(),
            next: 0,
            events: 0,
            event_bytes: 0,
            text: Vec::new(),
        };
        Asking::new(Flights::new(schedule, connections, window), query)
    }

    fn came(&mut self, mut at: At<'_>, sub: &[u8], event: &[u8]) {
        let Some(open) = find(&mut self.open[at.tag as usize], sub) else {
            return at.wrong("an event for no subscription");
        };
        self.events += 1;
        self.event_bytes += event.len() as u64;
        let wrong = match self.check {
            Check::Exact => {
                let expected = self.questions[open.question].expected.get(open.events);
                (expected.copied() != wire::event_id(event))
                    .then_some("another event than expected")
            }
            Check::Order => {
                let time = wire::event_time(event);
                let rises = time.is_none_or(|time| time > open.last_time);
                open.last_time = time.unwrap_or(open.last_time);
                rises.then_some("events out of order")
            }
        };
        open.events += 1;
        open.wrong = open.wrong.or(wrong);
    }

    fn ended(&mut self, mut at: At<'_>, sub: &[u8], refused: Option<&[u8]>) {
        let subs = &mut self.open[at.tag as usize];
        let Some(place) = position(subs, sub) else {
            // A relay may confirm a CLOSE with a CLOSED.
            if refused.is_none() {
                at.wrong("an EOSE for no subscription");
            }
            return;
        };
        let open = subs.swap_remove(place);
        at.flights.answer(at.tag, open.key, at.now);
        if let Some(reason) = refused {
            return at.told("closed", reason);
        }
        let short = self.check == Check::Exact
            && open.events != self.questions[open.question].expected.len();
        if let Some(wrong) = short
            .then_some("another count than expected")
            .or(open.wrong)
        {
            at.wrong(wrong);
        }
        if self.closes {
            self.text.clear();
            // Writing to a Vec cannot fail.
            let _ = write!(self.text, r#"["CLOSE","q{}"]"#, open.key);
            at.net.send(at.conn, &self.text);
        }
        // Together with the CLOSE, in one write.
        while self.ask(at.flights, at.net, at.now) {}
    }
}

/// The key in a subscription id of ours: `q` and a number.
fn key_of(sub: &[u8]) -> Option<u64> {
    std::str::from_utf8(sub.strip_prefix(b"q")?)
        .ok()?
        .parse()
        .ok()
}

fn position(open: &[Open], sub: &[u8]) -> Option<usize> {
    let key = key_of(sub)?;
    open.iter().position(|one| one.key == key)
}

fn find<'a>(open: &'a mut [Open], sub: &[u8]) -> Option<&'a mut Open> {
    let at = position(open, sub)?;
    open.get_mut(at)
}

impl Requests for Query {
    const NAME: &'static str = "query";
    const UNIT: &'static str = "requests";

    fn ask(&mut self, flights: &mut Flights, net: &mut Net, now: Nanos) -> bool {
        let Some((lane, conn, ticket)) = flights.take(now) else {
            return false;
        };
        let key = self.next;
        self.next += 1;
        let question = (key % self.questions.len() as u64) as usize;
        self.text.clear();
        let filter = &self.questions[question].filter;
        // Writing to a Vec cannot fail.
        let _ = write!(self.text, r#"["REQ","q{key}",{filter}]"#);
        net.send(conn, &self.text);
        let state = Open {
            key,
            question,
            events: 0,
            last_time: u64::MAX,
            wrong: None,
        };
        self.open[lane as usize].push(state);
        flights.sent(lane, key, ticket, now);
        true
    }

    fn message(&mut self, at: At<'_>, message: Message<'_>) {
        match message {
            Message::Event { sub, rest } => self.came(at, sub, rest),
            Message::Eose { sub } => self.ended(at, sub, None),
            Message::Closed { sub, reason } => self.ended(at, sub, Some(reason)),
            _ => {}
        }
    }

    fn closed(&mut self, at: At<'_>, why: &str) {
        self.open[at.tag as usize].clear();
        at.flights.lost(at.tag, why);
    }

    fn reset(&mut self) {
        (self.events, self.event_bytes) = (0, 0);
    }

    fn report(&self, answered: u64, extra: &mut Map<String, Value>) {
        let each = |sum: u64| tenths(sum as f64 / answered.max(1) as f64);
        extra.insert("events_per_request".into(), each(self.events).into());
        extra.insert("bytes_per_request".into(), each(self.event_bytes).into());
    }
}
