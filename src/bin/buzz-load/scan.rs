//! `scan`: COUNTs that no index answers, so that the relay looks at every event. What matters is
//! not how fast they are but what else the relay still does meanwhile.

use std::io::Write as _;

use crate::drive::Work;
use crate::flight::Flights;
use crate::net::{ConnId, Event, Net};
use crate::report::{Fault, Section};
use crate::schedule::{Nanos, Schedule};
use crate::wire::{self, Message};

/// Of the second filter each event must be looked up: the first may have counted it.
const FILTERS: &str = r#"{"kinds":[1]},{"since":0}"#;

/// The state of the workload.
pub struct Scan {
    flights: Flights,
    next: u64,
    /// The last answer: events are only added, so none may be smaller.
    counted: u64,
    text: Vec<u8>,
}

impl Scan {
    /// `window` COUNTs in flight on each connection.
    pub fn new(schedule: Schedule, connections: usize, window: usize) -> Scan {
        Scan {
            flights: Flights::new(schedule, connections, window),
            next: 0,
            counted: 0,
            text: Vec::new(),
        }
    }

    fn wrong(&mut self, why: &str) {
        self.flights.faults.add(Fault::Wrong, why);
    }

    fn answered(&mut self, tag: u32, sub: &[u8], count: Option<u64>, now: Nanos) {
        let key = std::str::from_utf8(sub)
            .ok()
            .and_then(|sub| sub.parse().ok());
        if !key.is_some_and(|key| self.flights.answer(tag, key, now)) {
            return self.wrong("an answer to no question");
        }
        match count {
            Some(count) if count > 0 && count >= self.counted => self.counted = count,
            Some(_) => self.wrong("a count that is too small"),
            None => self.wrong("closed"),
        }
    }
}

impl Work for Scan {
    fn open(&mut self, net: &mut Net, owner: usize) {
        for tag in 0..self.flights.lanes() as u32 {
            net.open(owner, tag);
        }
    }

    fn event(&mut self, _net: &mut Net, conn: ConnId, tag: u32, event: Event<'_>, now: Nanos) {
        match event {
            Event::Opened => self.flights.joined(tag, conn),
            Event::Text(text) => match wire::parse(text) {
                Message::Count { sub, count } => self.answered(tag, sub, Some(count), now),
                Message::Closed { sub, .. } => self.answered(tag, sub, None, now),
                Message::Notice { text } => {
                    let text = String::from_utf8_lossy(text);
                    self.wrong(&format!("notice: {text}"));
                }
                _ => {}
            },
            Event::Pong(_) => {}
            Event::Closed(why) => self.flights.lost(tag, why),
        }
    }

    fn ready(&self) -> bool {
        self.flights.all_arrived()
    }

    fn start(&mut self) {
        self.flights.start(0);
    }

    fn tick(&mut self, net: &mut Net, now: Nanos) -> Option<Nanos> {
        while let Some((lane, conn, ticket)) = self.flights.take(now) {
            self.text.clear();
            // Writing to a Vec cannot fail.
            let _ = write!(self.text, r#"["COUNT","{}",{FILTERS}]"#, self.next);
            net.send(conn, &self.text);
            self.flights.sent(lane, self.next, ticket, now);
            self.next += 1;
        }
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
    }

    fn finish(&mut self, now: Nanos) {
        self.flights.finish(now);
    }

    fn section(&self) -> Section {
        let mut extra = serde_json::Map::new();
        extra.insert("counted".into(), self.counted.into());
        Section {
            name: "scan",
            unit: "scans",
            operations: self.flights.answered,
            seconds: self.flights.seconds(),
            latencies: self.flights.latencies(),
            faults: self.flights.faults.clone(),
            extra,
        }
    }
}
