//! `login`: NIP-42. Every AUTH must get an OK that accepts it.
//!
//! By default connections stay open and each logs in its one user over and over, a challenge being
//! good for as long as its connection (NIP-42): so all logins are signed before the clock starts,
//! and what is measured is the login alone. With `fresh`, an operation is a whole visit: connect, upgrade,
//! challenge, login, close; there the signature is made between, and is part of the latency.

use secp256k1::Keypair;

use crate::drive::Work;
use crate::events::{self, Signed};
use crate::flight::Flights;
use crate::net::{ConnId, Event, Net};
use crate::report::{Fault, Section};
use crate::schedule::{Nanos, Schedule};
use crate::wire::{self, Message, ShortId};

/// How logins are made.
pub struct Logins {
    /// The relay's URL as it knows itself.
    pub relay: String,
    /// Users: one a connection, in turn.
    pub keypairs: Vec<Keypair>,
    /// The time that logins carry, in seconds since 1970.
    pub now: u64,
    /// Logins that are signed beforehand.
    pub count: usize,
    /// Whether each login has a connection of its own.
    pub fresh: bool,
}

#[derive(Clone, Debug, Default)]
struct Lane {
    challenge: Option<String>,
    signed: Vec<Signed>,
    /// The login in flight of a fresh connection.
    pending: Option<ShortId>,
}

/// The state of the workload.
pub struct Login {
    flights: Flights,
    logins: Logins,
    lanes: Vec<Lane>,
    /// Logins signed so far.
    signed: usize,
    owner: usize,
    /// Lanes that are open and have a challenge, or failed.
    challenged: usize,
}

impl Login {
    /// As many logins at once as there are lanes.
    pub fn new(schedule: Schedule, connections: usize, window: usize, logins: Logins) -> Login {
        let window = if logins.fresh { 1 } else { window };
        let mut flights = Flights::new(schedule, connections, window);
        if logins.fresh {
            (0..connections as u32).for_each(|lane| flights.joined(lane, ConnId::PLACE));
        }
        let lanes = vec![Lane::default(); connections];
        Login {
            flights,
            logins,
            lanes,
            signed: 0,
            owner: 0,
            challenged: 0,
        }
    }

    fn sign(&mut self, user: usize, challenge: &str) -> Signed {
        self.signed += 1;
        let keypair = &self.logins.keypairs[user % self.logins.keypairs.len()];
        // A user repeats; another second each time keeps the ids of those in flight apart. NIP-42
        // wants the time to be within about ten minutes.
        let now = self.logins.now - (self.signed % 300) as u64;
        events::sign_login(keypair, &self.logins.relay, challenge, now)
    }

    fn challenged(&mut self, net: &mut Net, conn: ConnId, tag: u32, challenge: &[u8]) {
        let challenge = String::from_utf8_lossy(challenge).into_owned();
        if self.logins.fresh {
            let signed = self.sign(self.signed, &challenge);
            self.lanes[tag as usize].pending = Some(signed.id);
            net.send(conn, &signed.message);
        } else if self.lanes[tag as usize]
            .challenge
            .replace(challenge)
            .is_none()
        {
            self.flights.joined(tag, conn);
            self.challenged += 1;
        }
    }

    fn ok(
        &mut self,
        net: &mut Net,
        conn: ConnId,
        tag: u32,
        id: &[u8],
        refused: Option<&[u8]>,
        now: Nanos,
    ) {
        let id = wire::short_id(id);
        let answered = if self.logins.fresh {
            let expected = id.is_some() && self.lanes[tag as usize].pending.take() == id;
            net.close(conn, false);
            self.flights.answer(tag, 0, now);
            expected
        } else {
            id.is_some_and(|id| self.flights.answer(tag, id, now))
        };
        if !answered {
            self.flights
                .faults
                .add(Fault::Wrong, "an OK for nothing in flight");
        } else if let Some(reason) = refused {
            let reason = String::from_utf8_lossy(reason);
            self.flights
                .faults
                .add(Fault::Wrong, &format!("refused: {reason}"));
        }
    }
}

impl Work for Login {
    fn open(&mut self, net: &mut Net, owner: usize) {
        self.owner = owner;
        if !self.logins.fresh {
            (0..self.lanes.len() as u32).for_each(|tag| net.open(owner, tag));
        }
    }

    fn event(&mut self, net: &mut Net, conn: ConnId, tag: u32, event: Event<'_>, now: Nanos) {
        match event {
            Event::Opened | Event::Pong(_) => {}
            Event::Text(text) => match wire::parse(text) {
                Message::Auth { challenge } => self.challenged(net, conn, tag, challenge),
                Message::Ok {
                    id,
                    accepted,
                    reason,
                } => {
                    self.ok(net, conn, tag, id, (!accepted).then_some(reason), now);
                }
                Message::Notice { text } => {
                    let text = String::from_utf8_lossy(text);
                    self.flights
                        .faults
                        .add(Fault::Wrong, &format!("notice: {text}"));
                }
                _ => {}
            },
            Event::Closed(why) if self.logins.fresh => {
                self.flights.answer(tag, 0, now);
                self.flights.faults.add(Fault::Connection, why);
            }
            Event::Closed(why) => {
                if self.lanes[tag as usize].challenge.is_none() {
                    self.challenged += 1;
                }
                self.flights.lost(tag, why);
            }
        }
    }

    fn ready(&self) -> bool {
        self.logins.fresh || self.challenged >= self.lanes.len()
    }

    fn prepare(&mut self) {
        if self.logins.fresh {
            return;
        }
        let each = self.logins.count.div_ceil(self.lanes.len().max(1));
        for lane in 0..self.lanes.len() {
            let Some(challenge) = self.lanes[lane].challenge.clone() else {
                continue;
            };
            self.lanes[lane].signed = (0..each).map(|_| self.sign(lane, &challenge)).collect();
        }
    }

    fn start(&mut self) {
        self.flights.start(0);
    }

    fn tick(&mut self, net: &mut Net, now: Nanos) -> Option<Nanos> {
        while let Some((lane, conn, ticket)) = self.flights.take(now) {
            if self.logins.fresh {
                net.open(self.owner, lane);
                self.flights.sent(lane, 0, ticket, now);
                continue;
            }
            let signed = self.lanes[lane as usize].signed.pop().unwrap_or_else(|| {
                // Lanes do not all get the same share; a few are signed late.
                let challenge = self.lanes[lane as usize]
                    .challenge
                    .clone()
                    .unwrap_or_default();
                self.sign(lane as usize, &challenge)
            });
            net.send(conn, &signed.message);
            self.flights.sent(lane, signed.id, ticket, now);
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
        extra.insert("fresh".into(), self.logins.fresh.into());
        Section {
            name: "login",
            unit: "logins",
            operations: self.flights.answered,
            seconds: self.flights.seconds(),
            latencies: self.flights.latencies(),
            faults: self.flights.faults.clone(),
            extra,
        }
    }
}
