//! Addresses of replaceable and addressable events: `<kind>:<pubkey>:<d>` (NIP-01, the `a` tag).

use super::cursor::decode_hex;
use super::kind::Class;

/// What an `a` tag names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address<'a> {
    /// A kind of which one version is kept.
    pub kind: u16,
    /// The author.
    pub pubkey: [u8; 32],
    /// The `d` tag; empty for a replaceable event.
    pub d: &'a str,
}

impl<'a> Address<'a> {
    /// Reads an address. `None` for anything that no event can have: another class of kind, digits
    /// that are not how the number is written, a replaceable kind with a `d`.
    pub fn parse(text: &'a str) -> Option<Address<'a>> {
        let (digits, rest) = text.split_once(':')?;
        let (pubkey, d) = rest.split_once(':')?;
        let canonical = digits.bytes().all(|byte| byte.is_ascii_digit())
            && (digits.len() == 1 || !digits.starts_with('0'));
        let kind = digits.parse().ok().filter(|_| canonical)?;
        let pubkey = decode_hex(pubkey.as_bytes())?;
        let fits = match Class::of(kind) {
            Class::Replaceable => d.is_empty(),
            Class::Addressable => true,
            Class::Regular | Class::Ephemeral => false,
        };
        fits.then_some(Address { kind, pubkey, d })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_an_event_can_have_is_an_address() {
        let key = "0a".repeat(32);
        let parse = |text: &str| Address::parse(text).map(|found| (found.kind, found.d.to_owned()));
        let addressed = format!("30023:{key}:a:b \u{e9}");
        let found = Address::parse(&addressed).unwrap();
        assert_eq!(found.pubkey, [0x0a; 32]);
        assert_eq!(parse(&addressed), Some((30_023, "a:b \u{e9}".to_owned())));
        assert_eq!(
            parse(&format!("30023:{key}:")),
            Some((30_023, String::new()))
        );
        assert_eq!(parse(&format!("0:{key}:")), Some((0, String::new())));
        for text in [
            format!("0:{key}"),
            format!("0:{key}:d"),
            format!("1:{key}:"),
            format!("20001:{key}:"),
            format!("030023:{key}:"),
            format!("+30023:{key}:"),
            format!("65536:{key}:"),
            format!("30023:{}:", key.to_uppercase()),
            format!("30023:{}:", &key[2..]),
            "::".to_owned(),
            String::new(),
        ] {
            assert_eq!(parse(&text), None, "{text}");
        }
    }
}
