//! Public keys as people write them: 64 hex digits, or `npub1…` (NIP-19).

use std::fmt;
use std::str::FromStr;

use bech32::primitives::decode::CheckedHrpstring;
use bech32::{Bech32, Hrp};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A public key. Displayed, and in JSON, it is its 64 lower-case hex digits.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct PublicKey(pub [u8; 32]);

/// Why a text is no public key. Repeats nothing of the text, which may be a secret.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum KeyError {
    /// Neither of the two forms.
    #[error("a key is 64 hex digits or an npub")]
    NoKey,
    /// An npub whose checksum or length is wrong.
    #[error("this npub has a typing error in it")]
    Mistyped,
    /// `nsec1…`.
    #[error("this is a secret key; give its public key (npub), and show the secret to nobody")]
    Secret,
    /// Something else of NIP-19.
    #[error("of what NIP-19 names, only an npub is a key")]
    OtherName,
}

const NPUB: Hrp = Hrp::parse_unchecked("npub");

impl PublicKey {
    /// Its `npub1…`.
    pub fn npub(&self) -> String {
        let encoded = bech32::encode::<Bech32>(NPUB, &self.0);
        encoded.expect("32 bytes are within the length of a bech32 text")
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<PublicKey, KeyError> {
        if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let key = const_hex::decode_to_array(text);
            return key.map(PublicKey).map_err(|_| KeyError::NoKey);
        }
        let lower = text.to_ascii_lowercase();
        if lower.starts_with("nsec1") || lower.starts_with("ncryptsec1") {
            return Err(KeyError::Secret);
        }
        if ["note1", "nprofile1", "nevent1", "naddr1"]
            .iter()
            .any(|name| lower.starts_with(name))
        {
            return Err(KeyError::OtherName);
        }
        if !lower.starts_with("npub1") {
            return Err(KeyError::NoKey);
        }
        // Of the two checksums NIP-19 uses the older one.
        let read = CheckedHrpstring::new::<Bech32>(text).map_err(|_| KeyError::Mistyped)?;
        let bytes: Vec<u8> = read.byte_iter().take(33).collect();
        match bytes.try_into() {
            Ok(key) if read.hrp() == NPUB => Ok(PublicKey(key)),
            _ => Err(KeyError::Mistyped),
        }
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&const_hex::encode(self.0))
    }
}

impl Serialize for PublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PublicKey, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The pair that NIP-19 gives as its example.
    const HEX: &str = "7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e";
    const NAME: &str = "npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg";

    #[test]
    fn both_forms_are_the_same_key() {
        let key: PublicKey = HEX.parse().unwrap();
        assert_eq!(NAME.parse(), Ok(key));
        assert_eq!(NAME.to_uppercase().parse(), Ok(key));
        assert_eq!(HEX.to_uppercase().parse(), Ok(key));
        assert_eq!((key.to_string().as_str(), key.npub().as_str()), (HEX, NAME));
        let json = serde_json::to_string(&key).unwrap();
        assert_eq!(json, format!("\"{HEX}\""));
        assert_eq!(serde_json::from_str::<PublicKey>(&json).unwrap(), key);
    }

    #[test]
    fn what_is_no_key_is_refused_by_its_kind() {
        let refused = |text: &str| text.parse::<PublicKey>().unwrap_err();
        for text in ["", "npub", &HEX[1..], &format!("0x{}", &HEX[2..]), "é"] {
            assert_eq!(refused(text), KeyError::NoKey, "{text}");
        }
        assert_eq!(refused(&format!("{HEX}0")), KeyError::NoKey);
        let hrp = |name| Hrp::parse(name).unwrap();
        let bech32m = bech32::encode::<bech32::Bech32m>(NPUB, &[7; 32]).unwrap();
        let short = bech32::encode::<Bech32>(NPUB, &[7; 31]).unwrap();
        let long = bech32::encode::<Bech32>(NPUB, &[7; 33]).unwrap();
        let typed = NAME.replacen('e', "f", 1);
        let mixed = NAME.replacen('e', "E", 1);
        for text in [&bech32m, &short, &long, &typed, &mixed, "npub1"] {
            assert_eq!(refused(text), KeyError::Mistyped, "{text}");
        }
        let secret = bech32::encode::<Bech32>(hrp("nsec"), &[7; 32]).unwrap();
        assert_eq!(refused(&secret), KeyError::Secret);
        let note = bech32::encode::<Bech32>(hrp("note"), &[7; 32]).unwrap();
        assert_eq!(refused(&note), KeyError::OtherName);
    }
}
