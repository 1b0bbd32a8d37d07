//! Where the relay listens: for clients, for health and for metrics.

use std::net::{IpAddr, SocketAddr};

use super::read::Reader;

pub(super) fn addresses(reader: &mut Reader<'_>) -> (SocketAddr, SocketAddr, SocketAddr) {
    let bind = reader.value(
        "BUZZ_BIND_ADDR",
        "an IP address and a port, such as 127.0.0.1:3000 or [::]:3000",
        |text| text.parse::<SocketAddr>().ok(),
    );
    let health = admin(reader, "BUZZ_HEALTH_BIND", "BUZZ_HEALTH_PORT");
    let metrics = admin(reader, "BUZZ_METRICS_BIND", "BUZZ_METRICS_PORT");

    let named = [
        ("BUZZ_BIND_ADDR", bind),
        ("BUZZ_HEALTH_PORT", health),
        ("BUZZ_METRICS_PORT", metrics),
    ];
    for (index, (name, address)) in named.iter().enumerate() {
        for (other_name, other) in &named[..index] {
            if collide(*address, *other) {
                reader.fault(format!(
                    "{name}: {address} is taken by {other_name} ({other}); choose another port, \
                     or 0 for a free one"
                ));
            }
        }
    }
    (bind, health, metrics)
}

pub(super) fn admin(
    reader: &mut Reader<'_>,
    address: &'static str,
    port: &'static str,
) -> SocketAddr {
    let form = "an IP address, such as 127.0.0.1 or ::";
    let address = reader.value(address, form, |text| text.parse::<IpAddr>().ok());
    let port = reader.number(port, 0..=u64::from(u16::MAX)) as u16;
    SocketAddr::new(address, port)
}

/// Two listeners that the kernel could not hold at the same time.
fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    // `::` takes IPv4 as well, 0.0.0.0 does not take IPv6.
    let covers = |a: IpAddr, b: IpAddr| a.is_unspecified() && (a.is_ipv6() || b.is_ipv4());
    let meet = a.ip() == b.ip() || covers(a.ip(), b.ip()) || covers(b.ip(), a.ip());
    a.port() != 0 && a.port() == b.port() && meet
}
