//! A connection's subscriptions: where history ends and live events begin.
//!
//! Invariants: a subscription is in the shard's index exactly as long as it is here. While its
//! history is read it holds live events back; once `EOSE` is queued it passes on what is above its
//! watermark. The bytes held back count towards the connection's queue, so they are bounded with it.

use std::rc::Rc;

use crate::live::{Place, SubKey};
use crate::metrics::CloseReason;
use crate::nostr::filter::Filter;
use crate::nostr::message::{self, EoseHint, SubId};
use crate::nostr::sealed;
use crate::shard::Shard;
use crate::shard::conn::{Conn, Phase};
use crate::shard::outbox::Shared;

/// A subscription of a connection.
pub struct Sub {
    /// The id, as JSON.
    pub id: SubId,
    /// Live events at or below this sequence are part of the history.
    pub watermark: u64,
    /// Tells this subscription from an earlier one of the same slot.
    pub serial: u32,
    /// Where the shard has its filters.
    place: Place,
    /// Live events that wait for the end of history; `None` once `EOSE` is queued.
    held: Option<Box<Held>>,
}

/// Events with their sequences.
#[derive(Default)]
struct Held(Vec<(u64, Shared)>);

// A client at rest has one, mostly: the memory of one is a size of the allocator's.
const _: () = assert!(size_of::<Option<Sub>>() <= 32);

/// The sequence of an event that is not stored: no history can hold it.
pub const EPHEMERAL: u64 = u64::MAX;

impl Conn {
    /// Adds a subscription whose history is still to be read. The caller has removed an older one
    /// of the same id. Returns its key, its serial and the values that it keeps, or `None` when
    /// there are too many.
    pub(super) fn add_sub(
        &self,
        shard: &Shard,
        id: SubId,
        filters: &[Filter],
    ) -> Option<(SubKey, u32, usize)> {
        let mut subs = self.subs.borrow_mut();
        let slot = match subs.iter().position(Option::is_none) {
            Some(free) => free,
            None if subs.len() >= shard.config().subscriptions_max => return None,
            None => {
                // One at a time: most clients hold few, and an idle connection must stay small.
                let mut more = std::mem::take(&mut *subs).into_vec();
                more.reserve_exact(1);
                more.push(None);
                *subs = more.into_boxed_slice();
                subs.len() - 1
            }
        };
        let (key, serial) = (self.sub_key(slot), shard.next_serial());
        let (place, values) = shard.subscribe(key, filters);
        subs[slot] = Some(Sub {
            id,
            watermark: u64::MAX,
            serial,
            place,
            held: Some(Box::default()),
        });
        self.filter_values.set(self.filter_values.get() + values);
        Some((key, serial, values))
    }

    /// Removes a subscription. Returns how many events it held back, if it was there.
    pub fn remove_sub(&self, shard: &Shard, id: &SubId) -> Option<usize> {
        let mut subs = self.subs.borrow_mut();
        let found = subs
            .iter()
            .position(|sub| sub.as_ref().is_some_and(|sub| sub.id == *id));
        let slot = found?;
        let sub = subs[slot].take();
        let in_use = subs.iter().rposition(Option::is_some);
        let in_use = in_use.map_or(0, |last| last + 1);
        if in_use < subs.len() {
            let mut fewer = std::mem::take(&mut *subs).into_vec();
            fewer.truncate(in_use);
            *subs = fewer.into_boxed_slice();
        }
        drop(subs);
        let held = self.forget_sub(shard, slot, sub);
        self.recount(shard);
        Some(held)
    }

    /// Whether the subscription of this slot is still the one with this serial.
    pub fn has_sub(&self, key: SubKey, serial: u32) -> bool {
        self.with_sub(key, |sub| sub.serial == serial) == Some(true)
    }

    /// From now on live events at or below `watermark` are left to the history.
    pub fn set_watermark(&self, key: SubKey, watermark: u64) {
        self.with_sub(key, |sub| sub.watermark = watermark);
    }

    /// Takes live events, each with its sequence, that subscriptions of this connection match: queues
    /// them, holds them back until the end of history, or leaves them to the history. The sequence of
    /// events not stored is [`EPHEMERAL`].
    pub fn offer<'a>(
        self: &Rc<Self>,
        shard: &Rc<Shard>,
        offers: impl Iterator<Item = (SubKey, u64, &'a Shared)>,
    ) {
        if self.phase.get() != Phase::Open {
            return;
        }
        let (mut delivered, mut held_back) = (0, 0);
        {
            let mut subs = self.subs.borrow_mut();
            let mut outbox = self.outbox.borrow_mut();
            for (key, sequence, event) in offers {
                if sealed::is_sealed(event.kind()) && !self.viewer().may_see(event) {
                    continue;
                }
                let Some(Some(sub)) = subs.get_mut(key.0 as u32 as usize) else {
                    continue;
                };
                match &mut sub.held {
                    Some(held) => {
                        held.0.push((sequence, event.clone()));
                        held_back += event.json().len();
                    }
                    None if sequence <= sub.watermark => {}
                    None => {
                        let batch = outbox.batch(|| shard.spare_batch());
                        batch.push_live(&sub.id, event);
                        delivered += 1;
                    }
                }
            }
        }
        self.held_bytes.set(self.held_bytes.get() + held_back);
        if delivered > 0 {
            shard.metrics.events_delivered.increment(delivered);
            self.write_soon(shard);
        }
        if delivered > 0 || held_back > 0 {
            self.within_bounds(shard);
        }
    }

    /// Ends a subscription's history: queues `EOSE` with its hint, then what was held back above the
    /// watermark.
    pub fn end_history(self: &Rc<Self>, shard: &Rc<Shard>, key: SubKey, hint: Option<EoseHint>) {
        let held = self.with_sub(key, |sub| {
            let Held(held) = *sub.held.take().unwrap_or_default();
            self.queue(shard, |batch| {
                batch.push_text(|out| message::write_eose(out, &sub.id, hint));
                for (sequence, event) in &held {
                    if *sequence == EPHEMERAL || *sequence > sub.watermark {
                        batch.push_live(&sub.id, event);
                        shard.metrics.events_delivered.increment(1);
                    }
                }
            });
            held
        });
        self.release_held(held.as_deref().unwrap_or_default());
        self.write_soon(shard);
        self.within_bounds(shard);
    }

    /// The ids of all subscriptions.
    pub fn sub_ids(&self) -> Vec<SubId> {
        let subs = self.subs.borrow();
        subs.iter().flatten().map(|sub| sub.id.clone()).collect()
    }

    fn sub_key(&self, slot: usize) -> SubKey {
        SubKey(u64::from(self.key()) << 32 | slot as u64)
    }

    fn with_sub<T>(&self, key: SubKey, look: impl FnOnce(&mut Sub) -> T) -> Option<T> {
        let mut subs = self.subs.borrow_mut();
        let sub = subs.get_mut(key.0 as u32 as usize)?.as_mut()?;
        Some(look(sub))
    }

    fn release_held(&self, held: &[(u64, Shared)]) {
        let bytes: usize = held.iter().map(|(_, event)| event.json().len()).sum();
        self.held_bytes.set(self.held_bytes.get() - bytes);
    }

    fn forget_sub(&self, shard: &Shard, slot: usize, sub: Option<Sub>) -> usize {
        let Some(sub) = sub else { return 0 };
        let Held(held) = *sub.held.unwrap_or_default();
        self.release_held(&held);
        let values = shard.forget(sub.place, self.sub_key(slot));
        self.filter_values.set(self.filter_values.get() - values);
        held.len()
    }

    pub(super) fn drop_subs(&self, shard: &Shard) {
        let subs = std::mem::take(&mut *self.subs.borrow_mut());
        let mut dropped = 0;
        for (slot, sub) in subs.into_iter().enumerate() {
            dropped += self.forget_sub(shard, slot, sub);
        }
        let why = self.ended_by().unwrap_or(CloseReason::Lost);
        self.count_dropped(shard, why, dropped);
    }
}
