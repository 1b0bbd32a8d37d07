//! `login`: NIP-42. Every AUTH must get an OK that accepts it.
//!
//! By default connections stay open and each logs in its one user over and over, a challenge being
//! good for as long as its connection (NIP-42): so all logins are signed before the clock starts,
//! and what is measured is the login alone. With `fresh`, an operation is a whole visit: connect, upgrade,
//! challenge, login, close; there the signature is made between, and is part of the latency.

use secp256k1::Keypair;
use serde_json::{Map, Value};

use crate::events::{self, Signed};
use crate::flight::Flights;
use crate::net::{ConnId, Net};
use crate::report::Fault;
use crate::requests::{Asking, At, Requests};
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
    pub fn asking(
        schedule: Schedule,
        connections: usize,
        window: usize,
        logins: Logins,
    ) -> Asking<Login> {
        let window = if logins.fresh { 1 } else { window };
        let mut flights = Flights::new(schedule, connections, window);
        if logins.fresh {
            (0..connections as u32).for_each(|lane| flights.joined(lane, ConnId::PLACE));
        }
        let login = Login {
            logins,
            lanes: vec![Lane::default(); connections],
            signed: 0,
            owner: 0,
            challenged: 0,
        };
        Asking::new(flights, login)
    }

    fn sign(&mut self, user: usize, challenge: &str) -> Signed {
        self.signed += 1;
        let keypair = &self.logins.keypairs[user % self.logins.keypairs.len()];
        // A user repeats; another second each time keeps the ids of those in flight apart. NIP-42
        // wants the time to be within about ten minutes.
        let now = self.logins.now - (self.signed % 300) as u64;
        events::sign_login(keypair, &self.logins.relay, challenge, now)
    }

    fn challenged(&mut self, at: At<'_>, challenge: &[u8]) {
        let challenge = String::from_utf8_lossy(challenge).into_owned();
        if self.logins.fresh {
            let signed = self.sign(self.signed, &challenge);
            self.lanes[at.tag as usize].pending = Some(signed.id);
            at.net.send(at.conn, &signed.message);
        } else if self.lanes[at.tag as usize]
            .challenge
            .replace(challenge)
            .is_none()
        {
            at.flights.joined(at.tag, at.conn);
            self.challenged += 1;
        }
    }

    fn ok(&mut self, mut at: At<'_>, id: &[u8], refused: Option<&[u8]>) {
        let id = wire::short_id(id);
        let answered = if self.logins.fresh {
            let expected = id.is_some() && self.lanes[at.tag as usize].pending.take() == id;
            at.net.close(at.conn, false);
            at.flights.answer(at.tag, 0, at.now);
            expected
        } else {
            id.is_some_and(|id| at.flights.answer(at.tag, id, at.now))
        };
        if !answered {
            at.wrong("an OK for nothing in flight");
        } else if let Some(reason) = refused {
            at.told("refused", reason);
        }
    }
}

impl Requests for Login {
    const NAME: &'static str = "login";
    const UNIT: &'static str = "logins";

    fn open(&mut self, _flights: &Flights, net: &mut Net, owner: usize) {
        self.owner = owner;
        if !self.logins.fresh {
            (0..self.lanes.len() as u32).for_each(|tag| net.open(owner, tag));
        }
    }

    fn opened(&mut self, _at: At<'_>) {
        // Of use once it has its challenge.
    }

    fn message(&mut self, at: At<'_>, message: Message<'_>) {
        match message {
            Message::Auth { challenge } => self.challenged(at, challenge),
            Message::Ok {
                id,
                accepted,
                reason,
            } => self.ok(at, id, (!accepted).then_some(reason)),
            _ => {}
        }
    }

    fn closed(&mut self, at: At<'_>, why: &str) {
        if self.logins.fresh {
            at.flights.answer(at.tag, 0, at.now);
            return at.flights.faults.add(Fault::Connection, why);
        }
        if self.lanes[at.tag as usize].challenge.is_none() {
            self.challenged += 1;
        }
        at.flights.lost(at.tag, why);
    }

    fn ready(&self, _flights: &Flights) -> bool {
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

    fn ask(&mut self, flights: &mut Flights, net: &mut Net, now: Nanos) -> bool {
        let Some((lane, conn, ticket)) = flights.take(now) else {
            return false;
        };
        if self.logins.fresh {
            net.open(self.owner, lane);
            flights.sent(lane, 0, ticket, now);
            return true;
        }
        let signed = self.lanes[lane as usize].signed.pop().unwrap_or_else(|| {
            // Lanes do not all get the same share; a few are signed late.
            let challenge = self.lanes[lane as usize].challenge.clone();
            self.sign(lane as usize, &challenge.unwrap_or_default())
        });
        net.send(conn, &signed.message);
        flights.sent(lane, signed.id, ticket, now);
        true
    }

    fn report(&self, _answered: u64, extra: &mut Map<String, Value>) {
        extra.insert("fresh".into(), self.logins.fresh.into());
    }
}
