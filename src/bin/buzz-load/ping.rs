//! `ping`: WebSocket pings. What they show is how long a shard is busy with something else; run
//! them beside another workload.

use crate::flight::Flights;
use crate::net::Net;
use crate::requests::{Asking, At, Requests};
use crate::schedule::{Nanos, Schedule};

/// The state of the workload.
#[derive(Default)]
pub struct Ping {
    next: u64,
}

impl Ping {
    /// One ping in flight on each connection.
    pub fn asking(schedule: Schedule, connections: usize) -> Asking<Ping> {
        Asking::new(Flights::new(schedule, connections, 1), Ping::default())
    }
}

impl Requests for Ping {
    const NAME: &'static str = "ping";
    const UNIT: &'static str = "pings";

    fn ask(&mut self, flights: &mut Flights, net: &mut Net, now: Nanos) -> bool {
        let Some((lane, conn, ticket)) = flights.take(now) else {
            return false;
        };
        net.ping(conn, &self.next.to_be_bytes());
        flights.sent(lane, self.next, ticket, now);
        self.next += 1;
        true
    }

    fn pong(&mut self, mut at: At<'_>, payload: &[u8]) {
        let key = payload.try_into().map(u64::from_be_bytes);
        if !key.is_ok_and(|key| at.flights.answer(at.tag, key, at.now)) {
            at.wrong("a pong for no ping");
        }
    }
}
