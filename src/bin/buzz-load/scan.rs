//! `scan`: COUNTs that no index answers, so that the relay looks at every event. What matters is
//! not how fast they are but what else the relay still does meanwhile.

use std::io::Write as _;

use serde_json::{Map, Value};

use crate::flight::Flights;
use crate::net::Net;
use crate::requests::{Asking, At, Requests};
use crate::schedule::{Nanos, Schedule};
use crate::wire::Message;

/// Of the second filter each event must be looked up: the first may have counted it.
const FILTERS: &str = r#"{"kinds":[1]},{"since":0}"#;

/// The state of the workload.
#[derive(Default)]
pub struct Scan {
    next: u64,
    /// The last answer: events are only added, so none may be smaller.
    counted: u64,
    text: Vec<u8>,
}

impl Scan {
    /// `window` COUNTs in flight on each connection.
    pub fn asking(schedule: Schedule, connections: usize, window: usize) -> Asking<Scan> {
        Asking::new(Flights::new(schedule, connections, window), Scan::default())
    }

    fn answered(&mut self, mut at: At<'_>, sub: &[u8], count: Option<u64>) {
        let key = std::str::from_utf8(sub)
            .ok()
            .and_then(|sub| sub.parse().ok());
        if !key.is_some_and(|key| at.flights.answer(at.tag, key, at.now)) {
            return at.wrong("an answer to no question");
        }
        match count {
            Some(count) if count > 0 && count >= self.counted => self.counted = count,
            Some(_) => at.wrong("a count that is too small"),
            None => at.wrong("closed"),
        }
    }
}

impl Requests for Scan {
    const NAME: &'static str = "scan";
    const UNIT: &'static str = "scans";

    fn ask(&mut self, flights: &mut Flights, net: &mut Net, now: Nanos) -> bool {
        let Some((lane, conn, ticket)) = flights.take(now) else {
            return false;
        };
        self.text.clear();
        // Writing to a Vec cannot fail.
        let _ = write!(self.text, r#"["COUNT","{}",{FILTERS}]"#, self.next);
        net.send(conn, &self.text);
        flights.sent(lane, self.next, ticket, now);
        self.next += 1;
        true
    }

    fn message(&mut self, at: At<'_>, message: Message<'_>) {
        match message {
            Message::Count { sub, count } => self.answered(at, sub, Some(count)),
            Message::Closed { sub, .. } => self.answered(at, sub, None),
            _ => {}
        }
    }

    fn report(&self, _answered: u64, extra: &mut Map<String, Value>) {
        extra.insert("counted".into(), self.counted.into());
    }
}
