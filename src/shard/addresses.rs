//! Who connects from where: WebSockets, sockets without one yet, and new WebSockets, by address.
//!
//! An IPv4 address is one client, and so is an IPv6 /64: a household gets no less. Behind a trusted
//! proxy the client is who the proxy says it is, from the right of `X-Forwarded-For` up to the first
//! address that is no trusted proxy; what stands left of that the client itself may have written.
//!
//! Nothing here is used unless a bound by address is set. The table's locks are taken at the first
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

use crate::bucket::Bucket;
use crate::config::{AddressBounds, Network};
use crate::limits::{ADDRESS_STRIPES, ADDRESSES_REMEMBERED_MAX, UNUPGRADED_PER_ADDRESS_MAX};
use crate::metrics::UpgradeRefusal;

/// The table, shared by all threads.
#[derive(Debug)]
pub struct Addresses {
    bounds: AddressBounds,
    trusted: Vec<Network>,
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
    /// The table, or `None` if no bound by address is set.
    pub fn new(bounds: AddressBounds, trusted: Vec<Network>) -> Option<Arc<Addresses>> {
        let wanted = bounds.connections_max.is_some() || bounds.opened.is_some();
        wanted.then(|| {
            Arc::new(Addresses {
                bounds,
                trusted,
                stripes: (0..ADDRESS_STRIPES).map(|_| Mutex::default()).collect(),
                hasher: foldhash::fast::RandomState::default(),
            })
        })
    }

    /// Counts a socket that has not asked for anything yet. `Ok(None)`: it is a proxy's, which
    /// stands for many.
    ///
    /// # Errors
    ///
    /// Too many of its address have not asked either.
    pub fn enter_socket(
        self: &Arc<Self>,
        peer: SocketAddr,
        now: Instant,
    ) -> Result<Option<Place>, Full> {
        if is_trusted(&self.trusted, peer.ip()) {
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

    /// Counts a WebSocket of `client`.
    ///
    /// # Errors
    ///
    /// Which bound it is at. Then nothing is counted.
    pub fn enter(self: &Arc<Self>, client: Client, now: Instant) -> Result<Place, Full> {
        self.with(client, now, |entry| {
            let most = self.bounds.connections_max;
            if most.is_some_and(|most| entry.connections as usize >= most) {
                return Err(Full::Connections);
            }
            if let Some(rate) = &self.bounds.opened
                && !entry.opened.take(rate, 1, now)
            {
                return Err(Full::Rate);
            }
            entry.connections += 1;
            Ok(())
        })?;
        Ok(self.place(client, Kind::Connection))
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
        if entry.is_idle()
            && (self.table.bounds.opened.is_none() || entry.opened.is_full(Instant::now()))
        {
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
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bucket::Rate;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn table(connections_max: Option<usize>, a_minute: Option<u64>) -> Arc<Addresses> {
        let opened = a_minute.map(|tokens| Rate {
            tokens,
            per: Duration::from_secs(60),
            burst: Duration::from_secs(60),
        });
        let bounds = AddressBounds {
            connections_max,
            opened,
        };
        Addresses::new(bounds, vec![Network::parse("10.0.0.0/8").unwrap()]).expect("a table")
    }

    fn client(n: u32) -> Client {
        Client::of(IpAddr::V4(n.into()))
    }

    #[test]
    fn without_a_bound_there_is_no_table() {
        assert!(Addresses::new(AddressBounds::default(), Vec::new()).is_none());
    }

    #[test]
    fn an_ipv6_client_is_a_64_and_a_mapped_one_is_ipv4() {
        let of = |text| Client::of(ip(text));
        assert_eq!(
            of("2001:db8:1:2::1"),
            of("2001:db8:1:2:ffff:ffff:ffff:ffff")
        );
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }

    #[test]
    fn connections_are_counted_until_they_end() {
        let table = table(Some(2), None);
        let now = Instant::now();
        let first = table.enter(client(1), now).expect("room");
        let _second = table.enter(client(1), now).expect("room");
        assert_eq!(table.enter(client(1), now).err(), Some(Full::Connections));
        let _other = table.enter(client(2), now).expect("another client's room");
        drop(first);
        table.enter(client(1), now).expect("room again");
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn sockets_that_ask_for_nothing_are_counted_apart_and_a_proxy_s_are_not() {
        let table = table(Some(1), None);
        let now = Instant::now();
        let peer = |text: &str| SocketAddr::new(ip(text), 1);
        let mut places = Vec::new();
        while let Ok(place) = table.enter_socket(peer("192.0.2.1"), now) {
            places.push(place.expect("counted"));
        }
        assert_eq!(places.len(), UNUPGRADED_PER_ADDRESS_MAX);
        assert!(table.enter_socket(peer("10.1.2.3"), now).unwrap().is_none());
        table
            .enter(Client::of(ip("192.0.2.1")), now)
            .expect("its connection is another thing");
        drop(places);
        assert!(table.enter_socket(peer("192.0.2.1"), now).is_ok());
        assert!(table.is_empty());
    }

    #[test]
    fn the_table_is_bounded_and_never_forgets_who_is_connected() {
        let table = table(Some(1), Some(1));
        let now = Instant::now();
        let connected: Vec<Place> = (0..100)
            .map(|n| table.enter(client(n), now).expect("room"))
            .collect();
        for n in 100..4 * ADDRESSES_REMEMBERED_MAX as u32 {
            drop(table.enter(client(n), now).expect("room"));
        }
        assert!(
            table.len() <= ADDRESSES_REMEMBERED_MAX + 100,
            "{}",
            table.len()
        );
        for n in 0..100 {
            assert_eq!(table.enter(client(n), now).err(), Some(Full::Connections));
        }
        drop(connected);
        // Once their rate has recovered they are forgotten as others come.
        let later = now + Duration::from_secs(3_600);
        for n in 0..ADDRESSES_REMEMBERED_MAX as u32 {
            drop(table.enter(client(n), later));
        }
        assert!(table.len() <= ADDRESSES_REMEMBERED_MAX, "{}", table.len());
    }

    #[test]
    fn whoever_is_connected_from_all_threads_is_counted_once() {
        let table = table(Some(50), None);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for n in 0..10_000 {
                        let place = table.enter(client(n % 7), Instant::now());
                        assert!(place.is_ok());
                    }
                });
            }
        });
        assert!(table.is_empty());
    }

    #[test]
    fn only_a_trusted_proxy_says_who_it_was() {
        let trusted = ["10.0.0.0/8", "2001:db8::/32"].map(|text| Network::parse(text).unwrap());
        let said = |peer, line| origin(ip(peer), &[line], &trusted).to_string();
        assert_eq!(said("192.0.2.1", "198.51.100.1"), "192.0.2.1");
        assert_eq!(said("10.0.0.1", "198.51.100.1"), "198.51.100.1");
        assert_eq!(said("::ffff:10.0.0.1", "198.51.100.1"), "198.51.100.1");
        // What the client wrote itself stands to the left of what the proxy saw.
        assert_eq!(
            said("10.0.0.1", "203.0.113.9, 198.51.100.1"),
            "198.51.100.1"
        );
        // Through a second proxy of ours.
        assert_eq!(
            said("10.0.0.1", "203.0.113.9, 198.51.100.1, 10.9.9.9"),
            "198.51.100.1"
        );
        assert_eq!(said("10.0.0.1", "10.0.0.2, 10.0.0.3"), "10.0.0.2");
        // Nonsense is no client: it counts as the proxy that wrote it.
        assert_eq!(said("10.0.0.1", "unknown"), "10.0.0.1");
        assert_eq!(said("10.0.0.1", "198.51.100.1, "), "10.0.0.1");
        assert_eq!(said("10.0.0.1", ""), "10.0.0.1");
        assert_eq!(origin(ip("10.0.0.1"), &[], &trusted), ip("10.0.0.1"));
        // Some proxies add a line of their own instead.
        let added = |lines: &[&str]| origin(ip("10.0.0.1"), lines, &trusted).to_string();
        assert_eq!(
            added(&["203.0.113.9, 198.51.100.1", "10.9.9.9"]),
            "198.51.100.1"
        );
        assert_eq!(added(&["203.0.113.9", "198.51.100.1"]), "198.51.100.1");
        assert_eq!(added(&["203.0.113.9", ""]), "10.0.0.1");
        // The ways in which addresses are written.
        assert_eq!(said("2001:db8::1", "[2001:db9::7]:443"), "2001:db9::7");
        assert_eq!(said("2001:db8::1", "[2001:db9::7]"), "2001:db9::7");
        assert_eq!(said("2001:db8::1", "2001:db9::7"), "2001:db9::7");
        assert_eq!(said("2001:db8::1", "198.51.100.1:50000"), "198.51.100.1");
    }
}
