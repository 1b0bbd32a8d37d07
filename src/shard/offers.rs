//! Which subscription is offered which event: brought together by connection, without sorting.
//!
//! Events are matched one after the other, and each gives the subscriptions that it fits; a connection
//! is to get all of its own in one go. So offers are chained by connection as they come: one
//! list for each, the events in their order.

use crate::live::SubKey;

/// Offers of some events, by connection. Its memory is used again.
#[derive(Default)]
pub struct Offers {
    all: Vec<Offer>,
    /// The connections that are offered something, in the order of their first offer, and that.
    firsts: Vec<(u32, u32)>,
    /// By connection: its last offer, or [`NONE`].
    lasts: Vec<u32>,
}

struct Offer {
    key: SubKey,
    event: u32,
    /// The next one of the same connection, or [`NONE`].
    next: u32,
}

const NONE: u32 = u32::MAX;

impl Offers {
    /// Offers an event, by its number, to a subscription.
    pub fn push(&mut self, key: SubKey, event: u32) {
        let conn = conn_of(key);
        let at = self.all.len() as u32;
        self.all.push(Offer {
            key,
            event,
            next: NONE,
        });
        if self.lasts.len() <= conn as usize {
            self.lasts.resize(conn as usize + 1, NONE);
        }
        match std::mem::replace(&mut self.lasts[conn as usize], at) {
            NONE => self.firsts.push((conn, at)),
            last => self.all[last as usize].next = at,
        }
    }

    /// Connections, as their place in the shard's table, and what each is offered, in the order in
    /// which it came.
    pub fn by_conn(&self) -> impl Iterator<Item = (usize, OffersOf<'_>)> {
        let firsts = self.firsts.iter();
        firsts.map(|(conn, first)| {
            let all = &self.all;
            (*conn as usize, OffersOf { all, at: *first })
        })
    }

    /// Forgets them all.
    pub fn clear(&mut self) {
        self.all.clear();
        for (conn, _) in self.firsts.drain(..) {
            self.lasts[conn as usize] = NONE;
        }
    }
}

/// What one connection is offered: subscriptions and numbers of events.
#[derive(Clone)]
pub struct OffersOf<'a> {
    all: &'a [Offer],
    at: u32,
}

impl Iterator for OffersOf<'_> {
    type Item = (SubKey, u32);

    fn next(&mut self) -> Option<(SubKey, u32)> {
        let offer = self.all.get(self.at as usize)?;
        self.at = offer.next;
        Some((offer.key, offer.event))
    }
}

/// Where in the shard's table the connection of a subscription is.
fn conn_of(key: SubKey) -> u32 {
    (key.0 >> 32) as u32
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// By connection, each in the order of its first.
    fn model(pushed: &[(u32, u32, u32)]) -> Vec<(usize, Vec<(SubKey, u32)>)> {
        let mut lists: Vec<(usize, Vec<_>)> = Vec::new();
        for (conn, sub, event) in pushed {
            let conn = *conn as usize;
            if !lists.iter().any(|(other, _)| *other == conn) {
                lists.push((conn, Vec::new()));
            }
            let list = lists.iter_mut().find(|(other, _)| *other == conn);
            list.expect("just made").1.push((key(conn, *sub), *event));
        }
        lists
    }

    fn key(conn: usize, sub: u32) -> SubKey {
        SubKey((conn as u64) << 32 | u64::from(sub))
    }

    proptest! {
        #[test]
        fn each_connection_gets_its_own_in_order(
            rounds in vec(vec((0..40_u32, any::<u32>(), 0..16_u32), 0..200), 0..4),
        ) {
            let mut offers = Offers::default();
            for pushed in rounds {
                for (conn, sub, event) in &pushed {
                    offers.push(key(*conn as usize, *sub), *event);
                }
                let found: Vec<_> = offers.by_conn().map(|(conn, of)| (conn, of.collect())).collect();
                prop_assert_eq!(found, model(&pushed));
                offers.clear();
            }
        }
    }
}
