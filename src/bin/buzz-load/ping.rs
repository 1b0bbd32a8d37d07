//! `ping`: WebSocket pings. What they show is how long a shard is busy with something else; run
//! them beside another workload.

use crate::drive::Work;
use crate::flight::Flights;
use crate::net::{ConnId, Event, Net};
use crate::report::{Fault, Section};
use crate::schedule::{Nanos, Schedule};

/// The state of the workload.
pub struct Ping {
    flights: Flights,
    next: u64,
}

impl Ping {
    /// One ping in flight on each connection.
    pub fn new(schedule: Schedule, connections: usize) -> Ping {
        Ping {
            flights: Flights::new(schedule, connections, 1),
            next: 0,
        }
    }
}

impl Work for Ping {
    fn open(&mut self, net: &mut Net, owner: usize) {
        for tag in 0..self.flights.lanes() as u32 {
            net.open(owner, tag);
        }
    }

    fn event(&mut self, _net: &mut Net, conn: ConnId, tag: u32, event: Event<'_>, now: Nanos) {
        match event {
            Event::Opened => self.flights.joined(tag, conn),
            Event::Pong(payload) => {
                let key = payload.try_into().map(u64::from_be_bytes);
                if !key.is_ok_and(|key| self.flights.answer(tag, key, now)) {
                    self.flights.faults.add(Fault::Wrong, "a pong for no ping");
                }
            }
            Event::Text(_) => {}
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
            net.ping(conn, &self.next.to_be_bytes());
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
        Section {
            name: "ping",
            unit: "pings",
            operations: self.flights.answered,
            seconds: self.flights.seconds(),
            latencies: self.flights.latencies(),
            faults: self.flights.faults.clone(),
            extra: serde_json::Map::new(),
        }
    }
}
