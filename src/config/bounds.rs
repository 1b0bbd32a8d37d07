//! What clients may take: connections, queues, rates, by connection and by address.

use std::time::Duration;

use super::machine::Machine;
use super::network::Network;
use super::read::Reader;
use crate::bucket::Rate;
use crate::limits;

/// Bounds of the outbound queues: `soft_bytes <= hard_bytes <= total_bytes`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OutboxBounds {
    /// A connection whose queue reaches this is disconnected.
    pub hard_bytes: usize,
    /// A queue may be above this only for `soft`.
    pub soft_bytes: usize,
    /// How long a queue may be above `soft_bytes`.
    pub soft: Duration,
    /// Queues of all connections; past it the largest are disconnected.
    pub total_bytes: usize,
}

/// What one connection may send in a time; `None` is as much as it likes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Rates {
    /// Messages.
    pub messages: Option<Rate>,
    /// Bytes of messages.
    pub bytes: Option<Rate>,
}

/// Bounds on the connections of one address; `None` is none.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AddressBounds {
    /// Open at one time.
    pub connections_max: Option<usize>,
    /// Opened in a time.
    pub opened: Option<Rate>,
}

/// The bound asked for, cut to the share of the descriptors that connections may take.
pub(super) fn connections(reader: &mut Reader<'_>, machine: &Machine) -> usize {
    const VARIABLE: &str = "BUZZ_MAX_CONNECTIONS";
    let asked = reader.count(VARIABLE, 1..=limits::CONNECTIONS_MAX);
    let percent = limits::CONNECTIONS_DESCRIPTORS_PERCENT;
    // The product cannot overflow in 128 bits, and an unlimited process keeps what was asked.
    let share = u128::from(machine.descriptors_max) * u128::from(percent) / 100;
    let share = usize::try_from(share).unwrap_or(usize::MAX).max(1);
    if asked <= share {
        return asked;
    }
    reader.adjust(VARIABLE, share);
    reader.note(format!(
        "{VARIABLE} lowered from {asked} to {share}: {percent} % of the descriptor limit {}; \
         raise that limit (ulimit -Hn, LimitNOFILE=) to serve more",
        machine.descriptors_max
    ));
    share
}

pub(super) fn outbox(reader: &mut Reader<'_>, frame_bytes_max: usize) -> OutboxBounds {
    let bytes = 1..=limits::OUTBOX_BYTES_MAX;
    let total_bytes = reader.count("BUZZ_OUTBOX_TOTAL_BYTES", bytes);
    let hard_bytes = bounded(
        reader,
        "BUZZ_OUTBOX_HARD_BYTES",
        "BUZZ_OUTBOX_TOTAL_BYTES",
        total_bytes,
    );
    if hard_bytes < frame_bytes_max {
        reader.fault(format!(
            "{}: {hard_bytes} does not hold one message of BUZZ_MAX_FRAME_BYTES \
             {frame_bytes_max}; raise it, or lower the latter",
            if total_bytes < frame_bytes_max {
                "BUZZ_OUTBOX_TOTAL_BYTES"
            } else {
                "BUZZ_OUTBOX_HARD_BYTES"
            },
        ));
    }
    OutboxBounds {
        hard_bytes,
        soft_bytes: bounded(
            reader,
            "BUZZ_OUTBOX_SOFT_BYTES",
            "BUZZ_OUTBOX_HARD_BYTES",
            hard_bytes,
        ),
        soft: Duration::from_secs(
            reader.number("BUZZ_OUTBOX_SOFT_SECONDS", 1..=limits::SECONDS_SETTING_MAX),
        ),
        total_bytes,
    }
}

pub(super) fn rates(reader: &mut Reader<'_>) -> Rates {
    let seconds = 1..=limits::RATE_BURST_SECONDS_MAX;
    let burst = Duration::from_secs(reader.number("BUZZ_RATE_BURST_SECONDS", seconds));
    let mut rate = |variable| {
        let tokens = reader.number_or(variable, 1..=limits::RATE_MAX, None)?;
        Some(Rate {
            tokens,
            per: Duration::from_secs(1),
            burst,
        })
    };
    Rates {
        messages: rate("BUZZ_RATE_MESSAGES_PER_SECOND"),
        bytes: rate("BUZZ_RATE_BYTES_PER_SECOND"),
    }
}

pub(super) fn addresses_bounds(reader: &mut Reader<'_>) -> AddressBounds {
    const MINUTE: Duration = Duration::from_secs(60);
    let range = 1..=limits::COUNT_SETTING_MAX as u64;
    let most = reader.number_or("BUZZ_MAX_CONNECTIONS_PER_ADDRESS", range.clone(), None);
    let tokens = reader.number_or("BUZZ_RATE_CONNECTIONS_PER_MINUTE", range, None);
    AddressBounds {
        connections_max: most.map(|most| most as usize),
        opened: tokens.map(|tokens| Rate {
            tokens,
            per: MINUTE,
            burst: MINUTE,
        }),
    }
}

pub(super) fn trusted_proxies(reader: &mut Reader<'_>) -> Vec<Network> {
    let form = format!(
        "at most {} IP addresses or networks, with commas between, such as 10.0.0.0/8,2001:db8::1",
        limits::TRUSTED_PROXIES_MAX
    );
    let read = reader.optional("BUZZ_TRUSTED_PROXIES", &form, |text| {
        let networks = text.split(',').map(|one| Network::parse(one.trim()));
        let networks: Option<Vec<Network>> = networks.collect();
        networks.filter(|networks| networks.len() <= limits::TRUSTED_PROXIES_MAX)
    });
    read.unwrap_or_default()
}

/// A count that another setting bounds. Given and too large it is a fault; a default gives way.
pub(super) fn bounded(
    reader: &mut Reader<'_>,
    variable: &'static str,
    bound_name: &str,
    bound: usize,
) -> usize {
    let count = reader.count(variable, 1..=limits::OUTBOX_BYTES_MAX);
    if count <= bound {
        return count;
    }
    if reader.is_given(variable) {
        reader.fault(format!(
            "{variable}: {count} is more than {bound_name}, which is {bound}"
        ));
    } else {
        reader.adjust(variable, bound);
        reader.note(format!(
            "{variable} lowered from {count} to {bound}, which is {bound_name}"
        ));
    }
    bound
}
