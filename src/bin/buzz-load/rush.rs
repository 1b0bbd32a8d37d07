//! `login --until-in`: a storm. Every client sends its login in the same moment, and whoever is sent
//! away comes back as clients do: after a second, then ever longer, until it is in.
//!
//! One operation is one client, from that moment until its OK, its absences included. So the largest
//! latency is the time until all are in.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fastrand::Rng;
use serde_json::{Map, Value};

use crate::events::{self, Signed};
use crate::flight::Flights;
use crate::limits::{CROWD_BACKOFF, CROWD_BACKOFF_MAX, CROWD_SPREAD_PERCENT};
use crate::login::Logins;
use crate::net::Net;
use crate::requests::{Asking, At, Requests};
use crate::schedule::{Nanos, Schedule};
use crate::wire::{self, Message, ShortId};

#[derive(Clone, Debug, Default)]
struct Client {
    challenge: Option<String>,
    /// Signed before the clock starts.
    signed: Option<Signed>,
    /// The login in flight.
    pending: Option<ShortId>,
    begun: bool,
    is_in: bool,
    /// Times it was sent away.
    sent_away: u32,
}

/// The state of the workload.
pub struct Rush {
    logins: Logins,
    clients: Vec<Client>,
    owner: usize,
    /// Clients that are open and have a challenge, or failed.
    challenged: usize,
    /// Who comes back, and when.
    away: BinaryHeap<Reverse<(Nanos, u32)>>,
    random: Rng,
    /// Closes without a code: what the auth gate does to a login that waited too long.
    sheds: u64,
    /// Other ends before the OK.
    other_ends: u64,
}

impl Rush {
    /// One login for each connection. `schedule` must hand out as many operations.
    pub fn asking(schedule: Schedule, connections: usize, logins: Logins) -> Asking<Rush> {
        let rush = Rush {
            logins,
            clients: vec![Client::default(); connections],
            owner: 0,
            challenged: 0,
            away: BinaryHeap::new(),
            random: Rng::new(),
            sheds: 0,
            other_ends: 0,
        };
        Asking::new(Flights::new(schedule, connections, 1), rush)
    }

    fn sign(&self, client: u32, challenge: &str) -> Signed {
        let keypair = &self.logins.keypairs[client as usize % self.logins.keypairs.len()];
        events::sign_login(keypair, &self.logins.relay, challenge, self.logins.now)
    }

    fn challenged(&mut self, at: At<'_>, challenge: &[u8]) {
        let challenge = String::from_utf8_lossy(challenge).into_owned();
        if self.clients[at.tag as usize].begun {
            let signed = self.sign(at.tag, &challenge);
            self.clients[at.tag as usize].pending = Some(signed.id);
            at.net.send(at.conn, &signed.message);
        } else if self.clients[at.tag as usize]
            .challenge
            .replace(challenge)
            .is_none()
        {
            at.flights.joined(at.tag, at.conn);
            self.challenged += 1;
        }
    }

    fn ok(&mut self, mut at: At<'_>, id: &[u8], refused: Option<&[u8]>) {
        let client = &mut self.clients[at.tag as usize];
        let id = wire::short_id(id);
        if id.is_none() || client.pending.take() != id {
            return at.wrong("an OK for nothing in flight");
        }
        client.is_in = true;
        at.flights.answer(at.tag, 0, at.now);
        if let Some(reason) = refused {
            at.told("refused", reason);
        }
    }
}

impl Requests for Rush {
    const NAME: &'static str = "login";
    const UNIT: &'static str = "clients";

    fn open(&mut self, _flights: &Flights, net: &mut Net, owner: usize) {
        self.owner = owner;
        (0..self.clients.len() as u32).for_each(|tag| net.open(owner, tag));
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
        let client = &mut self.clients[at.tag as usize];
        if !client.begun && client.challenge.is_none() {
            self.challenged += 1;
        }
        if !client.begun || client.is_in {
            return at.flights.lost(at.tag, why);
        }
        if why.ends_with("no code") {
            self.sheds += 1;
        } else {
            self.other_ends += 1;
        }
        let backoff = CROWD_BACKOFF.saturating_mul(1 << client.sent_away.min(16));
        let backoff = backoff.min(CROWD_BACKOFF_MAX).as_nanos() as f64;
        let spread = CROWD_SPREAD_PERCENT / 100.0 * (2.0 * self.random.f64() - 1.0);
        client.sent_away += 1;
        client.pending = None;
        let back = at.now + (backoff * (1.0 + spread)) as Nanos;
        self.away.push(Reverse((back, at.tag)));
    }

    fn ready(&self, _flights: &Flights) -> bool {
        self.challenged >= self.clients.len()
    }

    fn prepare(&mut self) {
        for tag in 0..self.clients.len() as u32 {
            if let Some(challenge) = self.clients[tag as usize].challenge.clone() {
                self.clients[tag as usize].signed = Some(self.sign(tag, &challenge));
            }
        }
    }

    fn ask(&mut self, flights: &mut Flights, net: &mut Net, now: Nanos) -> bool {
        let Some((lane, conn, ticket)) = flights.take(now) else {
            return false;
        };
        let client = &mut self.clients[lane as usize];
        client.begun = true;
        if let Some(signed) = client.signed.take() {
            client.pending = Some(signed.id);
            net.send(conn, &signed.message);
        }
        flights.sent(lane, 0, ticket, now);
        true
    }

    fn tick(&mut self, net: &mut Net, now: Nanos) -> Option<Nanos> {
        while let Some(Reverse((back, tag))) = self.away.peek().copied() {
            if back > now {
                break;
            }
            self.away.pop();
            net.open(self.owner, tag);
        }
        self.away.peek().map(|Reverse((back, _))| *back)
    }

    fn report(&self, _answered: u64, extra: &mut Map<String, Value>) {
        let most = self.clients.iter().map(|client| client.sent_away).max();
        extra.insert("sheds".into(), self.sheds.into());
        extra.insert("other_ends".into(), self.other_ends.into());
        extra.insert("sent_away_most".into(), most.unwrap_or(0).into());
    }
}
