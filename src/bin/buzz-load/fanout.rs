//! `fanout`: subscribers to one topic, and a publisher. Every subscriber must get every event once,
//! in the order in which they were published; every event must get its OK.
//!
//! A round is a burst of events in one write. The closed loop begins a round when the last delivery
//! of the one before came; the open loop when it is due. A delivery's latency counts from then.

use hashbrown::{HashMap, HashSet};

use crate::drive::Work;
use crate::events::Signed;
use crate::net::{ConnId, Event, Net};
use crate::report::{Fault, Faults, Latency, Section};
use crate::schedule::{Nanos, Pace, Schedule};
use crate::wire::{self, Message, ShortId};

struct Subscriber {
    conn: ConnId,
    arrived: bool,
    /// The next event in order, as an index of `Fanout::events`.
    next: usize,
    /// Events before `next` that have not come.
    missing: HashSet<usize>,
}

/// The state of the workload.
pub struct Fanout {
    subscribers: Vec<Subscriber>,
    /// The publisher's connection: the tag after the subscribers'.
    publisher: ConnId,
    publisher_arrived: bool,
    filter: String,
    events: Vec<Signed>,
    index_of: HashMap<ShortId, usize>,
    burst: usize,
    closed_loop: bool,
    schedule: Schedule,
    /// When each event that was published was due.
    due: Vec<Nanos>,
    /// Events before this one were begun before the last `reset`.
    measured_from: usize,
    deliveries_missing: usize,
    oks_missing: HashSet<ShortId>,
    deliveries: u64,
    reordered: u64,
    latency: Latency,
    ok_latency: Latency,
    late: Latency,
    faults: Faults,
    first_at: Nanos,
    last_at: Nanos,
}

impl Fanout {
    /// `events` all match `filter`; each round publishes `burst` of them.
    pub fn new(
        events: Vec<Signed>,
        filter: String,
        subscribers: usize,
        burst: usize,
        pace: Pace,
        rounds: u64,
        end: Nanos,
    ) -> Fanout {
        let index_of = events
            .iter()
            .enumerate()
            .map(|(index, event)| (event.id, index))
            .collect();
        let rounds = rounds.min((events.len() / burst.max(1)) as u64);
        Fanout {
            subscribers: (0..subscribers)
                .map(|_| Subscriber {
                    conn: ConnId::NONE,
                    arrived: false,
                    next: 0,
                    missing: HashSet::new(),
                })
                .collect(),
            publisher: ConnId::NONE,
            publisher_arrived: false,
            filter,
            events,
            index_of,
            burst,
            closed_loop: pace == Pace::Closed,
            schedule: Schedule::new(pace, rounds, end),
            due: Vec::new(),
            measured_from: 0,
            deliveries_missing: 0,
            oks_missing: HashSet::new(),
            deliveries: 0,
            reordered: 0,
            latency: Latency::new(),
            ok_latency: Latency::new(),
            late: Latency::new(),
            faults: Faults::default(),
            first_at: 0,
            last_at: 0,
        }
    }

    fn listening(&self) -> usize {
        self.subscribers
            .iter()
            .filter(|subscriber| subscriber.conn != ConnId::NONE)
            .count()
    }

    fn delivered(&mut self, tag: usize, event: &[u8], now: Nanos) {
        let Some(index) = wire::event_id(event).and_then(|id| {
            let next = self.subscribers[tag].next;
            let in_order = self.events.get(next).is_some_and(|event| event.id == id);
            if in_order {
                Some(next)
            } else {
                self.index_of.get(&id).copied()
            }
        }) else {
            self.faults.add(Fault::Wrong, "an event of somebody else");
            return;
        };
        let subscriber = &mut self.subscribers[tag];
        if index >= self.due.len() {
            self.faults
                .add(Fault::Wrong, "an event that was not published yet");
            return;
        }
        if index >= subscriber.next {
            self.reordered += u64::from(index > subscriber.next);
            subscriber.missing.extend(subscriber.next..index);
            subscriber.next = index + 1;
        } else if !subscriber.missing.remove(&index) {
            self.faults.add(Fault::Wrong, "an event twice");
            return;
        }
        self.deliveries_missing -= 1;
        self.last_at = now;
        if index >= self.measured_from {
            self.deliveries += 1;
            self.latency.record(now.saturating_sub(self.due[index]));
        }
    }

    fn lost(&mut self, tag: usize, why: &str) {
        self.faults.add(Fault::Connection, why);
        let published = self.due.len();
        let Some(subscriber) = self.subscribers.get_mut(tag) else {
            (self.publisher, self.publisher_arrived) = (ConnId::NONE, true);
            return;
        };
        let was_open = subscriber.conn != ConnId::NONE;
        (subscriber.conn, subscriber.arrived) = (ConnId::NONE, true);
        if was_open {
            let missing = published - subscriber.next + subscriber.missing.len();
            self.deliveries_missing -= missing;
            (0..missing).for_each(|_| {
                self.faults
                    .add(Fault::Unanswered, "the subscriber was lost")
            });
        }
    }

    fn round(&mut self, net: &mut Net, due: Nanos, now: Nanos) {
        self.late.record(if self.closed_loop {
            0
        } else {
            now.saturating_sub(due)
        });
        let start = self.due.len();
        for event in &self.events[start..start + self.burst] {
            net.send(self.publisher, &event.message);
            self.oks_missing.insert(event.id);
            self.due.push(due);
        }
        self.deliveries_missing += self.burst * self.listening();
    }

    fn round_is_over(&self) -> bool {
        self.deliveries_missing == 0 && self.oks_missing.is_empty()
    }
}

impl Work for Fanout {
    fn open(&mut self, net: &mut Net, owner: usize) {
        for tag in 0..=self.subscribers.len() as u32 {
            net.open(owner, tag);
        }
    }

    fn event(&mut self, net: &mut Net, conn: ConnId, tag: u32, event: Event<'_>, now: Nanos) {
        let tag = tag as usize;
        match event {
            Event::Opened if tag == self.subscribers.len() => {
                (self.publisher, self.publisher_arrived) = (conn, true);
            }
            Event::Opened => {
                self.subscribers[tag].conn = conn;
                net.send(
                    conn,
                    format!(r#"["REQ","live",{}]"#, self.filter).as_bytes(),
                );
            }
            Event::Text(text) => match wire::parse(text) {
                Message::Event { rest, .. } if tag < self.subscribers.len() => {
                    self.delivered(tag, rest, now);
                }
                Message::Eose { .. } if tag < self.subscribers.len() => {
                    self.subscribers[tag].arrived = true;
                }
                Message::Ok {
                    id,
                    accepted,
                    reason,
                } => {
                    let id = wire::short_id(id).filter(|id| self.oks_missing.remove(id));
                    let Some(index) = id.and_then(|id| self.index_of.get(&id).copied()) else {
                        self.faults.add(Fault::Wrong, "an OK for nothing in flight");
                        return;
                    };
                    self.ok_latency.record(now.saturating_sub(self.due[index]));
                    if !accepted {
                        let reason = String::from_utf8_lossy(reason);
                        self.faults.add(Fault::Wrong, &format!("refused: {reason}"));
                    }
                }
                Message::Closed { reason, .. } => {
                    self.subscribers
                        .get_mut(tag)
                        .into_iter()
                        .for_each(|one| one.arrived = true);
                    let reason = String::from_utf8_lossy(reason);
                    self.faults.add(Fault::Wrong, &format!("closed: {reason}"));
                }
                Message::Notice { text } => {
                    let text = String::from_utf8_lossy(text);
                    self.faults.add(Fault::Wrong, &format!("notice: {text}"));
                }
                _ => {}
            },
            Event::Pong(_) => {}
            Event::Closed(why) => self.lost(tag, why),
        }
    }

    fn ready(&self) -> bool {
        self.publisher_arrived && self.subscribers.iter().all(|subscriber| subscriber.arrived)
    }

    fn start(&mut self) {}

    fn tick(&mut self, net: &mut Net, now: Nanos) -> Option<Nanos> {
        if self.publisher == ConnId::NONE {
            return None;
        }
        while !self.closed_loop || self.round_is_over() {
            let Some(ticket) = self.schedule.take(now) else {
                break;
            };
            self.round(net, ticket.due, now);
        }
        if self.closed_loop {
            None
        } else {
            self.schedule.next_due(now)
        }
    }

    fn settled(&self, now: Nanos) -> bool {
        let more = self.schedule.next_due(now).is_some() || self.schedule.waiting(now) > 0;
        let lost = self.publisher == ConnId::NONE || self.listening() == 0;
        lost || (self.round_is_over() && !more)
    }

    fn operations(&self) -> u64 {
        self.deliveries
    }

    fn reset(&mut self, now: Nanos) {
        self.measured_from = self.due.len();
        (self.first_at, self.last_at) = (now, now);
        (self.deliveries, self.reordered) = (0, 0);
        self.latency.clear();
        self.ok_latency.clear();
        self.late.clear();
    }

    fn finish(&mut self, now: Nanos) {
        for subscriber in self
            .subscribers
            .iter()
            .filter(|one| one.conn != ConnId::NONE)
        {
            for index in (subscriber.next..self.due.len()).chain(subscriber.missing.iter().copied())
            {
                self.latency.record(now.saturating_sub(self.due[index]));
                self.faults.add(Fault::Unanswered, "not delivered in time");
            }
        }
        for _ in self.oks_missing.drain() {
            self.faults.add(Fault::Unanswered, "no OK in time");
        }
    }

    fn section(&self) -> Section {
        let mut extra = serde_json::Map::new();
        extra.insert("subscribers".into(), self.subscribers.len().into());
        extra.insert("burst".into(), self.burst.into());
        extra.insert(
            "events".into(),
            (self.due.len() - self.measured_from).into(),
        );
        extra.insert("reordered".into(), self.reordered.into());
        Section {
            name: "fanout",
            unit: "deliveries",
            operations: self.deliveries,
            seconds: self.last_at.saturating_sub(self.first_at) as f64 / 1e9,
            latencies: vec![
                ("latency", self.latency.clone()),
                ("ok", self.ok_latency.clone()),
                ("late", self.late.clone()),
            ],
            faults: self.faults.clone(),
            extra,
        }
    }
}
