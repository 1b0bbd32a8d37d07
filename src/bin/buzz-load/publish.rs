//! `publish`: events in, an OK for each. Every OK must name an event in flight and accept it.

use crate::drive::Work;
use crate::events::Signed;
use crate::flight::Flights;
use crate::net::{ConnId, Event, Net};
use crate::report::{Fault, Section};
use crate::schedule::{Nanos, Schedule};
use crate::wire::{self, Message};

/// The state of the workload.
pub struct Publish {
    flights: Flights,
    events: Vec<Signed>,
    next: usize,
    /// Whether an event that the relay has already is fine: for filling a store twice.
    duplicates_are_fine: bool,
    duplicates: u64,
}

impl Publish {
    /// Publishes `events` once each, as the schedule asks for them.
    pub fn new(
        events: Vec<Signed>,
        schedule: Schedule,
        connections: usize,
        window: usize,
        duplicates_are_fine: bool,
    ) -> Publish {
        let flights = Flights::new(schedule, connections, window);
        Publish {
            flights,
            events,
            next: 0,
            duplicates_are_fine,
            duplicates: 0,
        }
    }

    fn ok(&mut self, tag: u32, id: &[u8], accepted: bool, reason: &[u8], now: Nanos) {
        let Some(id) = wire::short_id(id).filter(|id| self.flights.answer(tag, *id, now)) else {
            self.flights
                .faults
                .add(Fault::Wrong, "an OK for nothing in flight");
            return;
        };
        let duplicate = reason.starts_with(b"duplicate");
        self.duplicates += u64::from(duplicate);
        let fault = match (duplicate, self.duplicates_are_fine) {
            (true, true) => return,
            (true, false) => format!("a duplicate: {id:016x}"),
            (false, _) if accepted => return,
            (false, _) => format!("refused: {}", String::from_utf8_lossy(reason)),
        };
        self.flights.faults.add(Fault::Wrong, &fault);
    }
}

impl Work for Publish {
    fn open(&mut self, net: &mut Net, owner: usize) {
        for tag in 0..self.flights.lanes() as u32 {
            net.open(owner, tag);
        }
    }

    fn event(&mut self, _net: &mut Net, conn: ConnId, tag: u32, event: Event<'_>, now: Nanos) {
        match event {
            Event::Opened => self.flights.joined(tag, conn),
            Event::Text(text) => match wire::parse(text) {
                Message::Ok {
                    id,
                    accepted,
                    reason,
                } => self.ok(tag, id, accepted, reason, now),
                Message::Notice { text } => {
                    let text = String::from_utf8_lossy(text);
                    self.flights
                        .faults
                        .add(Fault::Wrong, &format!("notice: {text}"));
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
        while self.next < self.events.len() {
            let Some((lane, conn, ticket)) = self.flights.take(now) else {
                break;
            };
            let event = &self.events[self.next];
            self.next += 1;
            net.send(conn, &event.message);
            self.flights.sent(lane, event.id, ticket, now);
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
        extra.insert("duplicates".into(), self.duplicates.into());
        Section {
            name: "publish",
            unit: "events",
            operations: self.flights.answered,
            seconds: self.flights.seconds(),
            latencies: self.flights.latencies(),
            faults: self.flights.faults.clone(),
            extra,
        }
    }
}
