//! `idle`: connections that do nothing, bare or with a subscription each, and what each costs the
//! relay in anonymous memory. An operation is a connection held.

use crate::drive::Work;
use crate::net::{ConnId, Event, Net};
use crate::report::{Fault, Faults, Section, tenths};
use crate::schedule::Nanos;
use crate::usage;
use crate::wire::{self, Message};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    Opening,
    Held,
    Closed,
    Over,
}

/// The state of the workload.
pub struct Idle {
    pids: Vec<u32>,
    conns: Vec<ConnId>,
    arrived: usize,
    subscribed: bool,
    settle: Nanos,
    step: Step,
    bytes_before: u64,
    bytes_held: u64,
    bytes_after: u64,
    faults: Faults,
}

impl Idle {
    /// Holds `connections` for `settle` nanoseconds, and waits as long after their end.
    pub fn new(pids: Vec<u32>, connections: usize, subscribed: bool, settle: Nanos) -> Idle {
        Idle {
            pids,
            conns: vec![ConnId::NONE; connections],
            arrived: 0,
            subscribed,
            settle,
            step: Step::Opening,
            bytes_before: 0,
            bytes_held: 0,
            bytes_after: 0,
            faults: Faults::default(),
        }
    }

    fn memory(&self) -> u64 {
        usage::anonymous_bytes(&self.pids).unwrap_or(0)
    }

    fn held(&self) -> u64 {
        self.conns
            .iter()
            .filter(|conn| **conn != ConnId::NONE)
            .count() as u64
    }
}

impl Work for Idle {
    fn open(&mut self, net: &mut Net, owner: usize) {
        self.bytes_before = self.memory();
        for tag in 0..self.conns.len() as u32 {
            net.open(owner, tag);
        }
    }

    fn event(&mut self, net: &mut Net, conn: ConnId, tag: u32, event: Event<'_>, _now: Nanos) {
        match event {
            Event::Opened => {
                self.conns[tag as usize] = conn;
                if self.subscribed {
                    // A topic of its own, so that nothing is shared that real users do not share.
                    let filter = format!(r##"{{"kinds":[1],"#t":["idle-{tag}"]}}"##);
                    net.send(conn, format!(r#"["REQ","idle",{filter}]"#).as_bytes());
                } else {
                    self.arrived += 1;
                }
            }
            Event::Text(text) => match wire::parse(text) {
                Message::Eose { .. } => self.arrived += 1,
                Message::Closed { reason, .. } => {
                    self.arrived += 1;
                    let reason = String::from_utf8_lossy(reason);
                    self.faults.add(Fault::Wrong, &format!("closed: {reason}"));
                }
                _ => {}
            },
            Event::Pong(_) => {}
            Event::Closed(why) => {
                self.arrived += usize::from(self.step == Step::Opening);
                self.conns[tag as usize] = ConnId::NONE;
                self.faults.add(Fault::Connection, why);
            }
        }
    }

    fn ready(&self) -> bool {
        self.arrived >= self.conns.len()
    }

    fn start(&mut self) {
        self.step = Step::Held;
    }

    fn tick(&mut self, net: &mut Net, now: Nanos) -> Option<Nanos> {
        if self.step == Step::Held && now >= self.settle {
            self.bytes_held = self.memory();
            self.conns.iter().for_each(|conn| net.close(*conn, true));
            self.step = Step::Closed;
        }
        if self.step == Step::Closed && now >= 2 * self.settle {
            self.bytes_after = self.memory();
            self.step = Step::Over;
        }
        Some(if self.step == Step::Held {
            self.settle
        } else {
            2 * self.settle
        })
    }

    fn settled(&self, _now: Nanos) -> bool {
        self.step == Step::Over
    }

    fn operations(&self) -> u64 {
        self.held()
    }

    fn reset(&mut self, _now: Nanos) {}

    fn finish(&mut self, _now: Nanos) {}

    fn section(&self) -> Section {
        let mut extra = serde_json::Map::new();
        if !self.pids.is_empty() {
            let each = |bytes: u64| {
                let grown = bytes as f64 - self.bytes_before as f64;
                tenths(grown / self.held().max(1) as f64)
            };
            extra.insert("anonymous_bytes_before".into(), self.bytes_before.into());
            extra.insert("anonymous_bytes_held".into(), self.bytes_held.into());
            extra.insert(
                "anonymous_bytes_after_close".into(),
                self.bytes_after.into(),
            );
            extra.insert(
                "anonymous_bytes_per_connection".into(),
                each(self.bytes_held).into(),
            );
        }
        extra.insert("subscribed".into(), self.subscribed.into());
        Section {
            name: "idle",
            unit: "connections",
            operations: self.held(),
            seconds: self.settle as f64 / 1e9,
            latencies: Vec::new(),
            faults: self.faults.clone(),
            extra,
        }
    }
}
