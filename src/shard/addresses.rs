//! Who connects from where: WebSockets, sockets without one yet, and new WebSockets, by address.
//!
//! An IPv4 address is one client, and so is an IPv6 /64: a household gets no less. Behind a trusted
//! proxy the client is who the proxy says it is, from the right of `X-Forwarded-For` up to the first
//! address that is no trusted proxy; what stands left of that the client itself may have written.
//!
//! Nothing here is used unless a bound by address is set; a connection that was there before one was
//! is not counted. The table's locks are taken at the first
//! and the last moment of a connection and never while it is served.
//!
//! Invariants: an entry exists while something of its address is counted, so there are at most as
//! many of those as there are sockets; entries that only remember a rate are at most
//! [`ADDRESSES_REMEMBERED_MAX`], and what is forgotten beyond it is the client's gain. Every
//! [`Place`] is given back exactly once, by its drop.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::bucket::{Bucket, Rate};
use crate::config::{AddressBounds, Network};
use crate::limits::{ADDRESS_STRIPES, ADDRESSES_REMEMBERED_MAX, UNUPGRADED_PER_ADDRESS_MAX};
use crate::metrics::UpgradeRefusal;

/// The table, shared by all threads.
#[derive(Debug)]
pub struct Addresses {
    stripes: Box<[Mutex<Stripe>]>,
    hasher: foldhash::fast::RandomState,
}

/// What a client is known by: an address with what is not its own cut off.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Client(IpAddr);

/// Which bound a client is at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Full {
    /// It has as many connections as it may.
    Connections,
    /// It has opened as many lately as it may.
    Rate,
}

impl Full {
    /// How it is counted and answered.
    pub fn refusal(self) -> UpgradeRefusal {
        match self {
            Full::Connections => UpgradeRefusal::AddressConnections,
            Full::Rate => UpgradeRefusal::AddressRate,
        }
    }
}

/// A counted connection. Dropping it gives its place back.
#[derive(Debug)]
pub struct Place {
    table: Arc<Addresses>,
    client: Client,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Socket,
    Connection,
}

#[derive(Debug, Default)]
struct Stripe {
    entries: HashMap<Client, Entry>,
    /// Entries at which those that nobody needs are looked for.
    look_at: usize,
}

#[derive(Debug)]
struct Entry {
    sockets: u32,
    connections: u32,
    opened: Bucket,
}

impl Entry {
    fn is_idle(&self) -> bool {
        self.sockets == 0 && self.connections == 0
    }
}

impl Addresses {
    /// Counts a socket that has not asked for anything yet. `Ok(None)`: it is a proxy's, which
    /// stands for many, or nothing is bounded.
    ///
    /// # Errors
    ///
    /// Too many of its address have not asked either.
    pub fn enter_socket(
        self: &Arc<Self>,
        bounds: &AddressBounds,
        trusted: &[Network],
        peer: SocketAddr,
        now: Instant,
    ) -> Result<Option<Place>, Full> {
        if *bounds == AddressBounds::default() || is_trusted(trusted, peer.ip()) {
            return Ok(None);
        }
        let client = Client::of(peer.ip());
        self.with(client, now, |entry| {
            if entry.sockets as usize >= UNUPGRADED_PER_ADDRESS_MAX {
                return Err(Full::Connections);
            }
            entry.sockets += 1;
            Ok(())
        })?;
        Ok(Some(self.place(client, Kind::Socket)))
    }

    /// Counts a WebSocket of `client`. `Ok(None)`: nothing is bounded.
    ///
    /// # Errors
    ///
    /// Which bound it is at. Then nothing is counted.
    pub fn enter(
        self: &Arc<Self>,
        bounds: &AddressBounds,
        client: Client,
        now: Instant,
    ) -> Result<Option<Place>, Full> {
        if *bounds == AddressBounds::default() {
            return Ok(None);
        }
        self.with(client, now, |entry| {
            let most = bounds.connections_max;
            if most.is_some_and(|most| entry.connections as usize >= most) {
                return Err(Full::Connections);
            }
            if let Some(rate) = &bounds.opened
                && !entry.opened.take(rate, 1, now)
            {
                return Err(Full::Rate);
            }
            entry.connections += 1;
            Ok(())
        })?;
        Ok(Some(self.place(client, Kind::Connection)))
    }

    /// What clients have left of one rate is what they have left of another.
    pub fn change_rate(&self, was: &Rate, is: &Rate, now: Instant) {
        for stripe in &self.stripes {
            for entry in lock(stripe).entries.values_mut() {
                entry.opened.change_rate(was, is, now);
            }
        }
    }

    /// Clients that are counted or remembered.
    pub fn len(&self) -> usize {
        let stripes = self.stripes.iter();
        stripes.map(|stripe| lock(stripe).entries.len()).sum()
    }

    /// Whether nobody is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn place(self: &Arc<Self>, client: Client, kind: Kind) -> Place {
        Place {
            table: self.clone(),
            client,
            kind,
        }
    }

    fn with<T>(&self, client: Client, now: Instant, act: impl FnOnce(&mut Entry) -> T) -> T {
        let mut stripe = lock(self.stripe(client));
        stripe.make_room(now);
        let entry = stripe.entries.entry(client).or_insert_with(|| Entry {
            sockets: 0,
            connections: 0,
            opened: Bucket::new(now),
        });
        act(entry)
    }

    fn stripe(&self, client: Client) -> &Mutex<Stripe> {
        use std::hash::BuildHasher;
        let hash = self.hasher.hash_one(client);
        &self.stripes[hash as usize % self.stripes.len()]
    }
}

impl Default for Addresses {
    /// An empty table.
    fn default() -> Addresses {
        Addresses {
            stripes: (0..ADDRESS_STRIPES).map(|_| Mutex::default()).collect(),
            hasher: foldhash::fast::RandomState::default(),
        }
    }
}

impl Stripe {
    /// Forgets whom nobody needs to remember, now and then: its cost is spread over the entries that
    /// came since.
    fn make_room(&mut self, now: Instant) {
        const REMEMBERED_MAX: usize = ADDRESSES_REMEMBERED_MAX / ADDRESS_STRIPES;
        if self.entries.len() < self.look_at.max(REMEMBERED_MAX / 4) {
            return;
        }
        self.entries
            .retain(|_, entry| !entry.is_idle() || !entry.opened.is_full(now));
        let idle = self
            .entries
            .values()
            .filter(|entry| entry.is_idle())
            .count();
        let mut surplus = (idle + 1).saturating_sub(REMEMBERED_MAX / 2);
        self.entries.retain(|_, entry| {
            let forget = surplus > 0 && entry.is_idle();
            surplus -= usize::from(forget);
            !forget
        });
        self.look_at = self.entries.len() + REMEMBERED_MAX / 4;
        self.entries.shrink_to(self.look_at);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut stripe = lock(self.table.stripe(self.client));
        let Some(entry) = stripe.entries.get_mut(&self.client) else {
            return;
        };
        match self.kind {
            Kind::Socket => entry.sockets -= 1,
            Kind::Connection => entry.connections -= 1,
        }
        // Without a rate nothing is ever taken from its bucket.
        if entry.is_idle() && entry.opened.is_full(Instant::now()) {
            stripe.entries.remove(&self.client);
        }
    }
}

/// No code of a stranger runs under the lock, so a poisoned table is whole.
fn lock(stripe: &Mutex<Stripe>) -> MutexGuard<'_, Stripe> {
    stripe.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    /// The client at an address.
    pub fn of(address: IpAddr) -> Client {
        Client(match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
            v4 => v4,
        })
    }
}

/// The address that a request comes from: the peer's own, or what a trusted proxy says.
/// `forwarded_for` are the `X-Forwarded-For` lines, of which the nearest proxy has added the last or
/// lengthened it.
pub fn origin(peer: IpAddr, forwarded_for: &[&str], trusted: &[Network]) -> IpAddr {
    let mut origin = peer.to_canonical();
    let members = forwarded_for.iter().rev().flat_map(|line| line.rsplit(','));
    for member in members {
        if !is_trusted(trusted, origin) {
            break;
        }
        // A proxy that does not say who it was is itself the one.
        let Some(address) = address(member.trim()) else {
            break;
        };
        origin = address;
    }
    origin
}

fn is_trusted(trusted: &[Network], address: IpAddr) -> bool {
    trusted.iter().any(|network| network.contains(address))
}

/// An address as proxies write it: bare, in brackets, with a port.
fn address(text: &str) -> Option<IpAddr> {
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let parsed = bare.unwrap_or(text).parse().ok();
    let parsed = parsed.or_else(|| Some(text.parse::<SocketAddr>().ok()?.ip()));
    parsed.map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests;
