//! HyperLogLog values of a COUNT (NIP-45): 256 registers that relays and clients merge by the
//! larger one, over the keys of the authors counted.
//!
//! A value exists for a filter that asks for one value of one tag, as all queries do that NIP-45
//! names. Of several values or tags the NIP means the first as sent; a filter is kept sorted, and
//! such a one gets a plain count.

use sha2::{Digest, Sha256};

use super::cursor::decode_hex;
use super::filter::Filter;
use super::pow::leading_zero_bits;

/// Registers of a value.
const REGISTERS: usize = 256;

/// A value being made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hll {
    /// Which byte of a key names the register, from 8 to 23.
    offset: u8,
    registers: Box<[u8; REGISTERS]>,
}

impl Hll {
    /// An empty value for a COUNT of these filters, if there is one for them: see the head of this
    /// file. Several filters have none.
    pub fn of(filters: &[Filter]) -> Option<Hll> {
        let [filter] = filters else { return None };
        let [(_, values)] = &filter.tags[..] else {
            return None;
        };
        let [value] = &values[..] else { return None };
        Some(Hll {
            offset: offset(value),
            registers: Box::new([0; REGISTERS]),
        })
    }

    /// Counts an event by its author.
    pub fn add(&mut self, pubkey: &[u8; 32]) {
        let offset = usize::from(self.offset);
        // At most 23 bytes follow: the number fits.
        let zeros = leading_zero_bits(&pubkey[offset + 1..]) as u8 + 1;
        let register = &mut self.registers[usize::from(pubkey[offset])];
        *register = zeros.max(*register);
    }

    /// The value as it is sent: 512 hex digits.
    pub fn to_hex(&self) -> String {
        const_hex::encode(&self.registers[..])
    }
}

/// Where in a key a filter's value points: the hex digit at 32 of the id, key or hash that the value
/// is, plus 8.
fn offset(value: &[u8]) -> u8 {
    let bytes: [u8; 32] = decode_hex(value)
        .or_else(|| address_key(value))
        .unwrap_or_else(|| Sha256::digest(value).into());
    // Two digits a byte: digit 32 is the high half of byte 16.
    (bytes[16] >> 4) + 8
}

/// The key of a value that has the form of an address, whatever its kind: of the form alone the NIP
/// speaks, and relays must agree.
fn address_key(value: &[u8]) -> Option<[u8; 32]> {
    let mut parts = value.splitn(3, |byte| *byte == b':');
    let (kind, pubkey, _) = (parts.next()?, parts.next()?, parts.next()?);
    let is_number = !kind.is_empty() && kind.iter().all(u8::is_ascii_digit);
    decode_hex(pubkey).filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(json: &str) -> Filter {
        Filter::parse(json, 100).unwrap()
    }

    #[test]
    fn the_offset_is_a_digit_of_the_value() {
        let hex = format!("{}c{}", "0".repeat(32), "f".repeat(31));
        assert_eq!(offset(hex.as_bytes()), 12 + 8);
        for address in ["30023:{}:x", "30023:{}:", "0:{}:a:b", "1:{}:"] {
            let address = address.replace("{}", &hex);
            assert_eq!(offset(address.as_bytes()), 12 + 8, "{address}");
        }
        for other in ["30023:{}", "kind:{}:x", ":{}:x", "{}:x", "30023:{}0:x"] {
            let other = other.replace("{}", &hex);
            let hash = const_hex::encode(Sha256::digest(&other));
            let digit = u8::from_str_radix(&hash[32..33], 16).unwrap();
            assert_eq!(offset(other.as_bytes()), digit + 8, "{other}");
        }
        // Upper-case digits are no id.
        let upper = hex.to_uppercase();
        let hash = const_hex::encode(Sha256::digest(&upper));
        let digit = u8::from_str_radix(&hash[32..33], 16).unwrap();
        assert_eq!(offset(upper.as_bytes()), digit + 8);
        // sha256sum says 8f5392e46117964c5bdc89299e3afa56 and then a 4.
        assert_eq!(offset(b"nostr"), 4 + 8);
    }

    #[test]
    fn a_value_is_for_one_value_of_one_tag() {
        assert!(Hll::of(&[filter(r##"{"#t":["a"],"kinds":[1]}"##)]).is_some());
        for other in [
            r##"{"#t":["a","b"]}"##,
            r##"{"#t":["a"],"#r":["a"]}"##,
            r##"{"#t":[]}"##,
            r#"{"kinds":[1]}"#,
        ] {
            assert!(Hll::of(&[filter(other)]).is_none(), "{other}");
        }
        let tagged = filter(r##"{"#t":["a"]}"##);
        assert!(Hll::of(&[tagged.clone(), tagged]).is_none());
    }

    #[test]
    fn registers_keep_the_longest_run_of_zero_bits() {
        let zeros = "0".repeat(64);
        let mut hll = Hll::of(&[filter(&format!(r##"{{"#e":["{zeros}"]}}"##))]).unwrap();
        let mut key = [0xff; 32];
        key[8] = 5;
        hll.add(&key);
        assert_eq!(hll.registers[5], 1);
        key[9] = 0;
        key[10] = 0x1f;
        hll.add(&key);
        assert_eq!(hll.registers[5], 12);
        key[9] = 0x7f;
        hll.add(&key);
        assert_eq!(hll.registers[5], 12);
        hll.add(&[0; 32]);
        assert_eq!(hll.registers[0], 23 * 8 + 1);
        let hex = hll.to_hex();
        assert_eq!((hex.len(), &hex[..2], &hex[10..12]), (512, "b9", "0c"));
        assert_eq!(hll.registers.iter().filter(|zeros| **zeros > 0).count(), 2);
    }
}
