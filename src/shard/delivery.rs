//! Events on their way through a shard: from the store, and to subscribers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use crate::limits::BATCH_SPARES_MAX;
use crate::live::{Place, SubKey};
use crate::metrics::DropReason;
use crate::nostr::event::Event;
use crate::nostr::filter::Filter;
use crate::shard::common::Mail;
use crate::shard::conn::Conn;
use crate::shard::mailbox::PushError;
use crate::shard::outbox::Batch;
use crate::shard::subs::EPHEMERAL;
use crate::shard::{Shard, ingest};
use crate::store::{Done, Origin};

impl Shard {
    /// Matches events, each with its sequence, against the shard's subscriptions and queues them for
    /// those they fit: connection by connection, so that each is looked up, judged and written to
    /// once, however many of them it gets.
    pub(super) fn deliver(self: &Rc<Self>, events: &mut Vec<(Arc<Event>, u64)>) {
        let mut matched = self.matched.take();
        let mut offers = self.offers.take();
        let mut shared = Vec::with_capacity(events.len());
        for (event, sequence) in events.drain(..) {
            let found = catch_unwind(AssertUnwindSafe(|| {
                let mut subscriptions = self.subscriptions.borrow_mut();
                subscriptions.matching(&event, &mut matched);
            }));
            if found.is_err() {
                self.lost_by_panic(1);
                continue;
            }
            let number = shared.len() as u32;
            for key in &matched {
                offers.push(*key, number);
            }
            shared.push((Rc::new(event), sequence));
        }
        for (key, of_one) in offers.by_conn() {
            let conn = self.conns.borrow().get(key).cloned();
            let Some(conn) = conn else { continue };
            let offered = of_one.clone().map(|(key, number)| {
                let (event, sequence) = &shared[number as usize];
                (key, *sequence, event)
            });
            if self.guard(&conn, || conn.offer(self, offered)).is_none() {
                self.lost_by_panic(of_one.count());
            }
        }
        offers.clear();
        self.offers.replace(offers);
        self.matched.replace(matched);
    }

    fn lost_by_panic(&self, events: usize) {
        let dropped = self.metrics.events_dropped.of(DropReason::Panic);
        dropped.increment(events as u64);
    }

    /// Hands an event that is not stored to all shards. Returns those whose mailbox is full.
    pub fn broadcast(self: &Rc<Self>, event: &Arc<Event>) -> Vec<usize> {
        self.deliver(&mut vec![(event.clone(), EPHEMERAL)]);
        let others = (0..self.common.mail.len()).filter(|id| *id != self.id);
        others.filter(|id| !self.pass_on(*id, event)).collect()
    }

    /// Hands an event that is not stored to another shard. Returns false if its mailbox is full. A
    /// closed one belongs to a process that ends.
    pub fn pass_on(&self, shard: usize, event: &Arc<Event>) -> bool {
        let pushed = self.common.mail[shard].try_push(Mail::Event(event.clone(), EPHEMERAL));
        !matches!(pushed, Err((_, PushError::Full)))
    }

    /// What the store gives back with its answer, so that it finds its connection.
    pub fn origin(&self, conn: &Conn) -> Origin {
        Origin {
            shard: self.id as u16,
            token: u64::from(conn.key()) << 32 | u64::from(conn.serial),
        }
    }

    pub(super) fn answered(self: &Rc<Self>, done: &Done) {
        if let Some(conn) = self.no_longer_in_flight(done.origin) {
            ingest::answer(self, &conn, &done.event, &done.outcome);
        }
    }

    /// The connection of an event that has its answer, unless it is gone.
    pub(super) fn no_longer_in_flight(&self, origin: Origin) -> Option<Rc<Conn>> {
        let key = (origin.token >> 32) as usize;
        let conn = self.conns.borrow().get(key).cloned();
        let conn = conn.filter(|conn| conn.serial == origin.token as u32)?;
        conn.in_flight.set(conn.in_flight.get() - 1);
        conn.wake();
        Some(conn)
    }

    /// Registers a subscription for live events. Returns where it is, and the values that it keeps.
    pub(super) fn subscribe(&self, key: SubKey, filters: &[Filter]) -> (Place, usize) {
        let mut subscriptions = self.subscriptions.borrow_mut();
        let place = subscriptions.insert(key, filters);
        self.metrics.subscriptions_active.rise();
        let values = subscriptions.value_count(place, key);
        (place, values.expect("it is here"))
    }

    /// Removes a subscription from the live events. Returns the values that it kept.
    pub(super) fn forget(&self, place: Place, key: SubKey) -> usize {
        let removed = self.subscriptions.borrow_mut().remove(place, key);
        self.metrics.subscriptions_active.fall();
        removed.expect("a subscription is removed once")
    }

    /// An empty batch, from those kept where there is one.
    pub fn spare_batch(&self) -> Box<Batch> {
        self.spares.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps a batch's memory for the next one.
    pub fn keep_batch(&self, mut batch: Box<Batch>) {
        let mut spares = self.spares.borrow_mut();
        if spares.len() < BATCH_SPARES_MAX {
            batch.clear();
            spares.push(batch);
        }
    }
}
