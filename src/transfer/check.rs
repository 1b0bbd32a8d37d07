//! One line to one event: UTF-8, shape, id, signature.

use crate::nostr::event::Event;
use crate::nostr::reason::{Prefix, Reason};
use crate::nostr::verify::Verifier;
use crate::transfer::lines::Line;

/// Reads an event and checks that its id is its own.
///
/// # Errors
/// What is wrong with the line.
pub fn read(line: Line<'_>) -> Result<Event, Reason> {
    let Line::Text(bytes) = line else {
        return invalid("the line is too long");
    };
    let Ok(text) = simdutf8::basic::from_utf8(bytes) else {
        return invalid("the line is not UTF-8");
    };
    let event = Event::parse(text).map_err(|error| error.reason)?;
    if !event.id_matches() {
        return invalid("the id is not the hash of the event");
    }
    Ok(event)
}

/// Checks that the author signed an event.
///
/// # Errors
/// That the author did not.
pub fn signature(verifier: &mut Verifier, event: &Event) -> Result<(), Reason> {
    if verifier.verify(event) {
        return Ok(());
    }
    invalid("the signature does not verify")
}

fn invalid<T>(text: &'static str) -> Result<T, Reason> {
    Err(Reason::fixed(Prefix::Invalid, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::testing::Author;

    #[test]
    fn each_fault_has_its_reason() {
        let good = Author::new(1).json::<&str>(1, 1, &[], "x");
        assert!(read(Line::Text(good.as_bytes())).is_ok());
        let other_content = good.replace("\"x\"", "\"y\"");
        for (line, words) in [
            (Line::TooLong, "too long"),
            (Line::Text(b"{\"id\":\"\xff\"}"), "not UTF-8"),
            (Line::Text(b"nonsense"), "not an object"),
            (Line::Text(b"{}"), "event"),
            (Line::Text(other_content.as_bytes()), "hash"),
        ] {
            let reason = read(line).expect_err("refused").to_string();
            assert!(
                reason.starts_with("invalid: ") && reason.contains(words),
                "{reason}"
            );
        }
        let forged = good.replace(&good[good.len() - 4..], "00\"}");
        let event = read(Line::Text(forged.as_bytes())).expect("its id is right");
        let reason = signature(&mut Verifier::new(0), &event).expect_err("forged");
        assert!(reason.to_string().contains("signature"));
    }
}
