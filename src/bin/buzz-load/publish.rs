//! `publish`: events in, an OK for each. Every OK must name an event in flight and accept it.

use serde_json::{Map, Value};

use crate::events::Signed;
use crate::flight::Flights;
use crate::net::Net;
use crate::requests::{Asking, At, Requests};
use crate::schedule::{Nanos, Schedule};
use crate::wire::{self, Message};

/// The state of the workload.
pub struct Publish {
    events: Vec<Signed>,
    next: usize,
    /// Whether an event that the relay has already is fine: for filling a store twice.
    duplicates_are_fine: bool,
    duplicates: u64,
}

impl Publish {
    /// Publishes `events` once each, as the schedule asks for them.
    pub fn asking(
        events: Vec<Signed>,
        schedule: Schedule,
        connections: usize,
        window: usize,
        duplicates_are_fine: bool,
    ) -> Asking<Publish> {
        let publish = Publish {
            events,
            next: 0,
            duplicates_are_fine,
            duplicates: 0,
        };
        Asking::new(Flights::new(schedule, connections, window), publish)
    }

    fn ok(&mut self, mut at: At<'_>, id: &[u8], accepted: bool, reason: &[u8]) {
        let (tag, now) = (at.tag, at.now);
        let Some(id) = wire::short_id(id).filter(|id| at.flights.answer(tag, *id, now)) else {
            return at.wrong("an OK for nothing in flight");
        };
        let duplicate = reason.starts_with(b"duplicate");
        self.duplicates += u64::from(duplicate);
        match (duplicate, self.duplicates_are_fine) {
            (true, true) => {}
            (true, false) => at.wrong(&format!("a duplicate: {id:016x}")),
            (false, _) if accepted => {}
            (false, _) => at.told("refused", reason),
        }
    }
}

impl Requests for Publish {
    const NAME: &'static str = "publish";
    const UNIT: &'static str = "events";

    fn ask(&mut self, flights: &mut Flights, net: &mut Net, now: Nanos) -> bool {
        let Some(event) = self.events.get(self.next) else {
            return false;
        };
        let Some((lane, conn, ticket)) = flights.take(now) else {
            return false;
        };
        self.next += 1;
        net.send(conn, &event.message);
        flights.sent(lane, event.id, ticket, now);
        true
    }

    fn message(&mut self, at: At<'_>, message: Message<'_>) {
        if let Message::Ok {
            id,
            accepted,
            reason,
        } = message
        {
            self.ok(at, id, accepted, reason);
        }
    }

    fn report(&self, _answered: u64, extra: &mut Map<String, Value>) {
        extra.insert("duplicates".into(), self.duplicates.into());
    }
}
