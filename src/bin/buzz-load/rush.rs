//! `login --until-in`: a storm. Every client sends its login in the same moment, and whoever is sent
//! away comes back as clients do: after a second, then ever longer, until it is in.
//!
//! One operation is one client, from that moment until its OK, its absences included. So the largest
//! latency is the time until all are in.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fastrand::Rng;

use crate::drive::Work;
use crate::events::{self, Signed};
use crate::flight::Flights;
use crate::limits::{CROWD_BACKOFF, CROWD_BACKOFF_MAX, CROWD_SPREAD_PERCENT};
use crate::login::Logins;
use crate::net::{ConnId, Event, Net};
use crate::report::{Fault, Section};
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
    flights: Flights,
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
    pub fn new(schedule: Schedule, connections: usize, logins: Logins) -> Rush {
        Rush {
            flights: Flights::new(schedule, connections, 1),
            logins,
            clients: vec![Client::default(); connections],
            owner: 0,
            challenged: 0,
            away: BinaryHeap::new(),
            random: Rng::new(),
            sheds: 0,
            other_ends: 0,
        }
    }

    fn sign(&self, client: u32, challenge: &str) -> Signed {
        let keypair = &self.logins.keypairs[client as usize % self.logins.keypairs.len()];
        events::sign_login(keypair, &self.logins.relay, challenge, self.logins.now)
    }

    fn challenged(&mut self, net: &mut Net, conn: ConnId, tag: u32, challenge: &[u8]) {
        let challenge = String::from_utf8_lossy(challenge).into_owned();
        if self.clients[tag as usize].begun {
            let signed = self.sign(tag, &challenge);
            self.clients[tag as usize].pending = Some(signed.id);
            net.send(conn, &signed.message);
        } else if self.clients[tag as usize]
            .challenge
            .replace(challenge)
            .is_none()
        {
            self.flights.joined(tag, conn);
            self.challenged += 1;
        }
    }

    fn ok(&mut self, tag: u32, id: &[u8], refused: Option<&[u8]>, now: Nanos) {
        let client = &mut self.clients[tag as usize];
        let id = wire::short_id(id);
        if id.is_none() || client.pending.take() != id {
            let text = "an OK for nothing in flight";
            self.flights.faults.add(Fault::Wrong, text);
            return;
        }
        client.is_in = true;
        self.flights.answer(tag, 0, now);
        if let Some(reason) = refused {
            let reason = String::from_utf8_lossy(reason);
            let text = format!("refused: {reason}");
            self.flights.faults.add(Fault::Wrong, &text);
        }
    }

    fn closed(&mut self, tag: u32, why: &str, now: Nanos) {
        let client = &mut self.clients[tag as usize];
        if !client.begun && client.challenge.is_none() {
            self.challenged += 1;
        }
        if !client.begun || client.is_in {
            return self.flights.lost(tag, why);
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
        let back = now + (backoff * (1.0 + spread)) as Nanos;
        self.away.push(Reverse((back, tag)));
    }
}

impl Work for Rush {
    fn open(&mut self, net: &mut Net, owner: usize) {
        self.owner = owner;
        (0..self.clients.len() as u32).for_each(|tag| net.open(owner, tag));
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
                } => self.ok(tag, id, (!accepted).then_some(reason), now),
                _ => {}
            },
            Event::Closed(why) => self.closed(tag, why, now),
        }
    }

    fn ready(&self) -> bool {
        self.challenged >= self.clients.len()
    }

    fn prepare(&mut self) {
        for tag in 0..self.clients.len() as u32 {
            if let Some(challenge) = self.clients[tag as usize].challenge.clone() {
                self.clients[tag as usize].signed = Some(self.sign(tag, &challenge));
            }
        }
    }

    fn start(&mut self) {
        self.flights.start(0);
    }

    fn tick(&mut self, net: &mut Net, now: Nanos) -> Option<Nanos> {
        while let Some((lane, conn, ticket)) = self.flights.take(now) {
            let client = &mut self.clients[lane as usize];
            client.begun = true;
            if let Some(signed) = client.signed.take() {
                client.pending = Some(signed.id);
                net.send(conn, &signed.message);
            }
            self.flights.sent(lane, 0, ticket, now);
        }
        while let Some(Reverse((back, tag))) = self.away.peek().copied() {
            if back > now {
                break;
            }
            self.away.pop();
            net.open(self.owner, tag);
        }
        let back = self.away.peek().map(|Reverse((back, _))| *back);
        self.flights.next_due(now).into_iter().chain(back).min()
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
        let most = self.clients.iter().map(|client| client.sent_away).max();
        let mut extra = serde_json::Map::new();
        extra.insert("sheds".into(), self.sheds.into());
        extra.insert("other_ends".into(), self.other_ends.into());
        extra.insert("sent_away_most".into(), most.unwrap_or(0).into());
        Section {
            name: "login",
            unit: "clients",
            operations: self.flights.answered,
            seconds: self.flights.seconds(),
            latencies: self.flights.latencies(),
            faults: self.flights.faults.clone(),
            extra,
        }
    }
}
