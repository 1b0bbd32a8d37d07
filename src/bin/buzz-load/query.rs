//! `query`: a REQ, its events, its EOSE. The ids must be exactly the right ones in the right order.

use std::io::Write as _;

use crate::drive::Work;
use crate::flight::Flights;
use crate::net::{ConnId, Event, Net};
use crate::questions::Question;
use crate::report::{Fault, Section, tenths};
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
    flights: Flights,
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
    pub fn new(
        questions: Vec<Question>,
        check: Check,
        closes: bool,
        schedule: Schedule,
        connections: usize,
        window: usize,
    ) -> Query {
        Query {
            flights: Flights::new(schedule, connections, window),
            questions,
            check,
            closes,
            open: (0..connections).map(|_| Vec::new()).collect(),
            next: 0,
            events: 0,
            event_bytes: 0,
            text: Vec::new(),
        }
    }

    fn ask(&mut self, net: &mut Net, now: Nanos) -> bool {
        let Some((lane, conn, ticket)) = self.flights.take(now) else {
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
        self.flights.sent(lane, key, ticket, now);
        true
    }

    fn came(&mut self, tag: u32, sub: &[u8], event: &[u8]) {
        let Some(open) = find(&mut self.open[tag as usize], sub) else {
            self.flights
                .faults
                .add(Fault::Wrong, "an event for no subscription");
            return;
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

    fn ended(
        &mut self,
        net: &mut Net,
        conn: ConnId,
        tag: u32,
        sub: &[u8],
        refused: Option<&[u8]>,
        now: Nanos,
    ) {
        let subs = &mut self.open[tag as usize];
        let Some(at) = position(subs, sub) else {
            // A relay may confirm a CLOSE with a CLOSED.
            if refused.is_none() {
                self.flights
                    .faults
                    .add(Fault::Wrong, "an EOSE for no subscription");
            }
            return;
        };
        let open = subs.swap_remove(at);
        self.flights.answer(tag, open.key, now);
        if let Some(reason) = refused {
            let reason = String::from_utf8_lossy(reason);
            self.flights
                .faults
                .add(Fault::Wrong, &format!("closed: {reason}"));
            return;
        }
        let short = self.check == Check::Exact
            && open.events != self.questions[open.question].expected.len();
        if let Some(wrong) = short
            .then_some("another count than expected")
            .or(open.wrong)
        {
            self.flights.faults.add(Fault::Wrong, wrong);
        }
        if self.closes {
            self.text.clear();
            let _ = write!(self.text, r#"["CLOSE","q{}"]"#, open.key);
            net.send(conn, &self.text);
        }
        // Together with the CLOSE, in one write.
        while self.ask(net, now) {}
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

impl Work for Query {
    fn open(&mut self, net: &mut Net, owner: usize) {
        for tag in 0..self.flights.lanes() as u32 {
            net.open(owner, tag);
        }
    }

    fn event(&mut self, net: &mut Net, conn: ConnId, tag: u32, event: Event<'_>, now: Nanos) {
        match event {
            Event::Opened => self.flights.joined(tag, conn),
            Event::Text(text) => match wire::parse(text) {
                Message::Event { sub, rest } => self.came(tag, sub, rest),
                Message::Eose { sub } => self.ended(net, conn, tag, sub, None, now),
                Message::Closed { sub, reason } => {
                    self.ended(net, conn, tag, sub, Some(reason), now)
                }
                Message::Notice { text } => {
                    let text = String::from_utf8_lossy(text);
                    self.flights
                        .faults
                        .add(Fault::Wrong, &format!("notice: {text}"));
                }
                _ => {}
            },
            Event::Pong(_) => {}
            Event::Closed(why) => {
                self.open[tag as usize].clear();
                self.flights.lost(tag, why);
            }
        }
    }

    fn ready(&self) -> bool {
        self.flights.all_arrived()
    }

    fn start(&mut self) {
        self.flights.start(0);
    }

    fn tick(&mut self, net: &mut Net, now: Nanos) -> Option<Nanos> {
        while self.ask(net, now) {}
        self.flights.next_due(now)
    }

    fn settled(&self, now: Nanos) -> bool {
        self.flights.settled(now)
    }

    fn operations(&self) -> u64 {
        self.flights.answered
    }

    fn reset(&mut self, now: Nanos) {
        self.flights.reset(now);
        (self.events, self.event_bytes) = (0, 0);
    }

    fn finish(&mut self, now: Nanos) {
        self.flights.finish(now);
    }

    fn section(&self) -> Section {
        let requests = self.flights.answered.max(1) as f64;
        let mut extra = serde_json::Map::new();
        extra.insert(
            "events_per_request".into(),
            tenths(self.events as f64 / requests).into(),
        );
        extra.insert(
            "bytes_per_request".into(),
            tenths(self.event_bytes as f64 / requests).into(),
        );
        Section {
            name: "query",
            unit: "requests",
            operations: self.flights.answered,
            seconds: self.flights.seconds(),
            latencies: self.flights.latencies(),
            faults: self.flights.faults.clone(),
            extra,
        }
    }
}
