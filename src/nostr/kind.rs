//! Kinds of events, and how the relay keeps each (NIP-01, "Kinds").

/// A deletion request (NIP-09).
pub const DELETION: u16 = 5;
/// A repost of a note (NIP-18).
pub const REPOST: u16 = 6;
/// A repost of anything else (NIP-18).
pub const GENERIC_REPOST: u16 = 16;
/// A request to vanish (NIP-62).
pub const VANISH: u16 = 62;
/// A gift wrap (NIP-59).
pub const GIFT_WRAP: u16 = 1_059;
/// A login to a relay (NIP-42). Never stored, never broadcast.
pub const AUTH: u16 = 22_242;
/// A login over HTTP (NIP-98). Never stored, never broadcast.
pub const HTTP_AUTH: u16 = 27_235;

/// What a relay does with events of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Every event is kept.
    Regular,
    /// The latest per author and kind is kept.
    Replaceable,
    /// Passed on to live subscriptions, never stored.
    Ephemeral,
    /// The latest per author, kind and `d` tag is kept.
    Addressable,
}

impl Class {
    /// The class of `kind`. Kinds that NIP-01 gives to no range are regular.
    pub const fn of(kind: u16) -> Self {
        match kind {
            0 | 3 | 10_000..=19_999 => Self::Replaceable,
            20_000..=29_999 => Self::Ephemeral,
            30_000..=39_999 => Self::Addressable,
            _ => Self::Regular,
        }
    }
}

/// Whether events of `kind` speak to one peer and are neither stored nor passed on (NIP-42,
/// NIP-98).
pub const fn is_never_stored(kind: u16) -> bool {
    kind == AUTH || kind == HTTP_AUTH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_the_ranges_of_nip_01() {
        let edges = [
            (0, Class::Replaceable),
            (1, Class::Regular),
            (2, Class::Regular),
            (3, Class::Replaceable),
            (4, Class::Regular),
            (44, Class::Regular),
            (45, Class::Regular),
            (1_000, Class::Regular),
            (9_999, Class::Regular),
            (10_000, Class::Replaceable),
            (19_999, Class::Replaceable),
            (20_000, Class::Ephemeral),
            (29_999, Class::Ephemeral),
            (30_000, Class::Addressable),
            (39_999, Class::Addressable),
            (40_000, Class::Regular),
            (u16::MAX, Class::Regular),
        ];
        for (kind, class) in edges {
            assert_eq!(Class::of(kind), class, "kind {kind}");
        }
    }
}
