use std::time::Duration;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// A table with its bounds.
struct Bench {
    table: Arc<Addresses>,
    bounds: AddressBounds,
    trusted: Network,
}

impl Bench {
    fn enter(&self, client: Client, now: Instant) -> Result<Place, Full> {
        let place = self.table.enter(&self.bounds, client, now);
        place.map(|place| place.expect("counted"))
    }

    fn enter_socket(&self, peer: SocketAddr, now: Instant) -> Result<Option<Place>, Full> {
        (self.table).enter_socket(&self.bounds, &[self.trusted], peer, now)
    }

    fn len(&self) -> usize {
        self.table.len()
    }

    fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

fn a_minute(tokens: u64) -> Rate {
    Rate {
        tokens,
        per: Duration::from_secs(60),
        burst: Duration::from_secs(60),
    }
}

fn table(connections_max: Option<usize>, opened: Option<u64>) -> Bench {
    Bench {
        table: Arc::default(),
        bounds: AddressBounds {
            connections_max,
            opened: opened.map(a_minute),
        },
        trusted: Network::parse("10.0.0.0/8").unwrap(),
    }
}

fn client(n: u32) -> Client {
    Client::of(IpAddr::V4(n.into()))
}

#[test]
fn without_a_bound_nobody_is_counted() {
    let Bench { table, bounds, .. } = table(None, None);
    let (peer, now) = ("192.0.2.1:1".parse().unwrap(), Instant::now());
    assert!(table.enter(&bounds, client(1), now).unwrap().is_none());
    let socket = table.enter_socket(&bounds, &[], peer, now);
    assert!(socket.unwrap().is_none());
    assert!(table.is_empty());
}

#[test]
fn bounds_may_change_while_clients_are_counted() {
    let mut table = table(None, Some(4));
    let now = Instant::now();
    let first = table.enter(client(1), now).expect("room");
    let second = table.enter(client(1), now).expect("room");
    table.bounds.connections_max = Some(2);
    assert_eq!(table.enter(client(1), now).err(), Some(Full::Connections));
    table.bounds.connections_max = Some(3);
    // Two of four are left, and at another rate they are still two.
    table.table.change_rate(&a_minute(4), &a_minute(60), now);
    table.bounds.opened = Some(a_minute(60));
    drop((first, second));
    for _ in 0..2 {
        table.enter(client(1), now).expect("its rate allows it");
    }
    assert_eq!(table.enter(client(1), now).err(), Some(Full::Rate));
    let later = now + Duration::from_secs(1);
    table.enter(client(1), later).expect("one more a second");
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
