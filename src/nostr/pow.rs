//! Proof of work (NIP-13): leading zero bits of an id, and the target that its author aimed at.

use super::event::Event;
use super::reason::{Prefix, Reason};

/// The difficulty of an id: its leading zero bits, at most 256.
pub fn difficulty(id: &[u8; 32]) -> u32 {
    leading_zero_bits(id)
}

/// The target that an event commits to: the third entry of its first `nonce` tag, as a decimal
/// number. `None` if there is none, or it is no such number.
pub fn committed_target(event: &Event) -> Option<u32> {
    let nonce = event.tags().find(|tag| tag.name() == "nonce")?;
    let target = nonce.get(2)?;
    let digits = target.bytes().all(|byte| byte.is_ascii_digit());
    target.parse().ok().filter(|_| digits)
}

/// Whether an event carries the work that the relay asks for, `difficulty_min` bits.
///
/// The target must be committed to: without that, who mines for less would now and then get lucky.
///
/// # Errors
/// `pow:` with what is missing.
pub fn check(event: &Event, difficulty_min: u8) -> Result<(), Reason> {
    let min = u32::from(difficulty_min);
    if min == 0 {
        return Ok(());
    }
    let found = difficulty(event.id());
    let refuse = |text: String| Err(Reason::new(Prefix::Pow, text));
    if found < min {
        return refuse(format!("difficulty {found} is less than {min}"));
    }
    match committed_target(event) {
        None => refuse(format!("no nonce tag commits to a difficulty of {min}")),
        Some(target) if target < min => {
            refuse(format!("committed difficulty {target} is less than {min}"))
        }
        Some(_) => Ok(()),
    }
}

/// Zero bits before the first one.
pub(super) fn leading_zero_bits(bytes: &[u8]) -> u32 {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    let rest = bytes.get(zeros).map_or(0, |byte| byte.leading_zeros());
    zeros as u32 * 8 + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: &str, tags: &str) -> Event {
        let json = format!(
            r#"{{"id":"{id}","pubkey":"{0}","created_at":1,"kind":1,"tags":{tags},"content":"","sig":"{0}{0}"}}"#,
            "ab".repeat(32)
        );
        Event::parse(&json).unwrap()
    }

    #[test]
    fn difficulty_is_that_of_the_nips_own_examples() {
        let bits = |hex: &str| difficulty(&const_hex::decode_to_array(hex).unwrap());
        assert_eq!(
            bits("000000000e9d97a1ab09fc381030b346cdd7a142ad57e6df0b46dc9bef6c7e2d"),
            36
        );
        assert_eq!(bits(&format!("002f{}", "0".repeat(60))), 10);
        assert_eq!(bits(&"0".repeat(64)), 256);
        assert_eq!(bits(&"f".repeat(64)), 0);
    }

    #[test]
    fn work_and_commitment_are_both_asked_for() {
        let mined = format!("000006d8{}", "ab".repeat(28));
        let refusal = |tags: &str, min| {
            let refused = check(&event(&mined, tags), min).err();
            refused.map(|reason| reason.to_string())
        };
        let committed = r#"[["t","x"],["nonce","776797","20"]]"#;
        assert_eq!(refusal("[]", 0), None);
        assert_eq!(refusal(committed, 20), None);
        assert_eq!(
            refusal(committed, 21).unwrap(),
            "pow: committed difficulty 20 is less than 21"
        );
        assert_eq!(
            refusal(committed, 22).unwrap(),
            "pow: difficulty 21 is less than 22"
        );
        for tags in [
            "[]",
            r#"[["nonce","1"]]"#,
            r#"[["nonce","1","+20"]]"#,
            r#"[["nonce","1",""]]"#,
            // The first one counts.
            r#"[["nonce","1"],["nonce","1","20"]]"#,
        ] {
            assert_eq!(
                refusal(tags, 20).unwrap(),
                "pow: no nonce tag commits to a difficulty of 20",
                "{tags}"
            );
        }
    }
}
