//! `accept`: connect, upgrade, close, over and over. One operation is one connection's life.

use crate::drive::Work;
use crate::flight::Flights;
use crate::net::{ConnId, Event, Net};
use crate::report::{Fault, Section};
use crate::schedule::{Nanos, Schedule};

/// The state of the workload.
pub struct Accept {
    flights: Flights,
    owner: usize,
    /// Whether a Close frame goes before the end.
    close_frame: bool,
}

impl Accept {
    /// As many connections at once as there are lanes.
    pub fn new(schedule: Schedule, at_once: usize, close_frame: bool) -> Accept {
        let mut flights = Flights::new(schedule, at_once, 1);
        for lane in 0..at_once as u32 {
            // A lane is a place here, not a connection: it is usable before there is one.
            flights.joined(lane, ConnId::PLACE);
        }
        Accept {
            flights,
            owner: 0,
            close_frame,
        }
    }
}

impl Work for Accept {
    fn open(&mut self, _net: &mut Net, owner: usize) {
        self.owner = owner;
    }

    fn event(&mut self, net: &mut Net, conn: ConnId, tag: u32, event: Event<'_>, now: Nanos) {
        match event {
            Event::Opened => {
                net.close(conn, self.close_frame);
                self.flights.answer(tag, 0, now);
            }
            Event::Closed(why) => {
                self.flights.answer(tag, 0, now);
                self.flights.faults.add(Fault::Connection, why);
            }
            Event::Text(_) | Event::Pong(_) => {}
        }
    }

    fn ready(&self) -> bool {
        true
    }

    fn start(&mut self) {
        self.flights.start(0);
    }

    fn tick(&mut self, net: &mut Net, now: Nanos) -> Option<Nanos> {
        while let Some((lane, _, ticket)) = self.flights.take(now) {
            net.open(self.owner, lane);
            self.flights.sent(lane, 0, ticket, now);
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
        Section {
            name: "accept",
            unit: "connections",
            operations: self.flights.answered,
            seconds: self.flights.seconds(),
            latencies: self.flights.latencies(),
            faults: self.flights.faults.clone(),
            extra: serde_json::Map::new(),
        }
    }
}
