//! `accept`: connect, upgrade, close, over and over. One operation is one connection's life.

use crate::flight::Flights;
use crate::net::{ConnId, Net};
use crate::report::Fault;
use crate::requests::{Asking, At, Requests};
use crate::schedule::{Nanos, Schedule};

/// The state of the workload.
pub struct Accept {
    owner: usize,
    /// Whether a Close frame goes before the end.
    close_frame: bool,
}

impl Accept {
    /// As many connections at once as there are lanes.
    pub fn asking(schedule: Schedule, at_once: usize, close_frame: bool) -> Asking<Accept> {
        let mut flights = Flights::new(schedule, at_once, 1);
        for lane in 0..at_once as u32 {
            // A lane is a place here, not a connection: it is usable before there is one.
            flights.joined(lane, ConnId::PLACE);
        }
        let owner = 0;
        Asking::new(flights, Accept { owner, close_frame })
    }
}

impl Requests for Accept {
    const NAME: &'static str = "accept";
    const UNIT: &'static str = "connections";

    fn open(&mut self, _flights: &Flights, _net: &mut Net, owner: usize) {
        self.owner = owner;
    }

    fn ask(&mut self, flights: &mut Flights, net: &mut Net, now: Nanos) -> bool {
        let Some((lane, _, ticket)) = flights.take(now) else {
            return false;
        };
        net.open(self.owner, lane);
        flights.sent(lane, 0, ticket, now);
        true
    }

    fn opened(&mut self, at: At<'_>) {
        at.net.close(at.conn, self.close_frame);
        at.flights.answer(at.tag, 0, at.now);
    }

    fn closed(&mut self, at: At<'_>, why: &str) {
        at.flights.answer(at.tag, 0, at.now);
        at.flights.faults.add(Fault::Connection, why);
    }
}
