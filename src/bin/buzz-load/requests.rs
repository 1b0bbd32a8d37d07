//! What workloads share whose operations are requests, each with one answer: the way from a due
//! ticket to an answer by [`Flights`], and what becomes of notices and lost connections.

use serde_json::{Map, Value};

use crate::drive::Work;
use crate::flight::Flights;
use crate::net::{ConnId, Event, Net};
use crate::report::{Fault, Section};
use crate::schedule::Nanos;
use crate::wire::{self, Message};

/// One kind of request.
pub trait Requests {
    /// The workload's name in the report.
    const NAME: &'static str;
    /// What one operation is, in the plural.
    const UNIT: &'static str;

    /// Asks for the connections: one a lane.
    fn open(&mut self, flights: &Flights, net: &mut Net, owner: usize) {
        for tag in 0..flights.lanes() as u32 {
            net.open(owner, tag);
        }
    }
    /// A connection is open.
    fn opened(&mut self, at: At<'_>) {
        at.flights.joined(at.tag, at.conn);
    }
    /// A message came that is no notice.
    fn message(&mut self, _at: At<'_>, _message: Message<'_>) {}
    /// A pong came.
    fn pong(&mut self, _at: At<'_>, _payload: &[u8]) {}
    /// A connection is gone.
    fn closed(&mut self, at: At<'_>, why: &str) {
        at.flights.lost(at.tag, why);
    }
    /// Whether set-up is over.
    fn ready(&self, flights: &Flights) -> bool {
        flights.all_arrived()
    }
    /// Does what takes time and is not to be measured.
    fn prepare(&mut self) {}
    /// Begins one request that is due; false if none is.
    fn ask(&mut self, flights: &mut Flights, net: &mut Net, now: Nanos) -> bool;
    /// Begins what is due besides requests; tells when the next such thing will be.
    fn tick(&mut self, _net: &mut Net, _now: Nanos) -> Option<Nanos> {
        None
    }
    /// Forgets what was measured so far.
    fn reset(&mut self) {}
    /// Adds to the report.
    fn report(&self, _answered: u64, _extra: &mut Map<String, Value>) {}
}

/// Where something happened.
pub struct At<'a> {
    /// The requests in flight.
    pub flights: &'a mut Flights,
    /// The way to the relay.
    pub net: &'a mut Net,
    /// The connection.
    pub conn: ConnId,
    /// Its lane.
    pub tag: u32,
    /// When.
    pub now: Nanos,
}

impl At<'_> {
    /// Counts an answer that is not right.
    pub fn wrong(&mut self, why: &str) {
        self.flights.faults.add(Fault::Wrong, why);
    }

    /// Counts an answer that is not right, with the relay's own words.
    pub fn told(&mut self, what: &str, text: &[u8]) {
        self.wrong(&format!("{what}: {}", String::from_utf8_lossy(text)));
    }
}

/// Requests and those of them that are in flight: a workload.
pub struct Asking<R> {
    flights: Flights,
    requests: R,
}

impl<R> Asking<R> {
    /// Asks `requests` as the schedule of `flights` says.
    pub fn new(flights: Flights, requests: R) -> Asking<R> {
        Asking { flights, requests }
    }
}

impl<R: Requests> Work for Asking<R> {
    fn open(&mut self, net: &mut Net, owner: usize) {
        self.requests.open(&self.flights, net, owner);
    }

    fn event(&mut self, net: &mut Net, conn: ConnId, tag: u32, event: Event<'_>, now: Nanos) {
        let flights = &mut self.flights;
        let mut at = At {
            flights,
            net,
            conn,
            tag,
            now,
        };
        match event {
            Event::Opened => self.requests.opened(at),
            Event::Text(text) => match wire::parse(text) {
                Message::Notice { text } => at.told("notice", text),
                message => self.requests.message(at, message),
            },
            Event::Pong(payload) => self.requests.pong(at, payload),
            Event::Closed(why) => self.requests.closed(at, why),
        }
    }

    fn ready(&self) -> bool {
        self.requests.ready(&self.flights)
    }

    fn prepare(&mut self) {
        self.requests.prepare();
    }

    fn start(&mut self) {
        self.flights.start(0);
    }

    fn tick(&mut self, net: &mut Net, now: Nanos) -> Option<Nanos> {
        while self.requests.ask(&mut self.flights, net, now) {}
        let other = self.requests.tick(net, now);
        self.flights.next_due(now).into_iter().chain(other).min()
    }

    fn settled(&self, now: Nanos) -> bool {
        self.flights.settled(now)
    }

    fn operations(&self) -> u64 {
        self.flights.answered
    }

    fn reset(&mut self, now: Nanos) {
        self.flights.reset(now);
        self.requests.reset();
    }

    fn finish(&mut self, now: Nanos) {
        self.flights.finish(now);
    }

    fn section(&self) -> Section {
        let mut extra = Map::new();
        self.requests.report(self.flights.answered, &mut extra);
        Section {
            name: R::NAME,
            unit: R::UNIT,
            operations: self.flights.answered,
            seconds: self.flights.seconds(),
            latencies: self.flights.latencies(),
            faults: self.flights.faults.clone(),
            extra,
        }
    }
}
