//! Reposts of protected events (NIP-70): they must not embed what they repost.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::event::Event;
use super::kind;

/// What a repost embeds. Anything may stand beside the tags: a text that is not quite an event
/// gives it away as well.
#[derive(Deserialize)]
struct Embedded {
    #[serde(default)]
    tags: Vec<Vec<Name>>,
}

/// A tag's string, or whatever stands in its place.
#[derive(Deserialize)]
#[serde(untagged)]
enum Name {
    Text(String),
    Other(IgnoredAny),
}

/// Whether an event is a repost (NIP-18) whose content is a protected event.
pub fn embeds_protected(event: &Event) -> bool {
    if event.kind() != kind::REPOST && event.kind() != kind::GENERIC_REPOST {
        return false;
    }
    let content = event.content();
    if !content.trim_start().starts_with('{') {
        return false;
    }
    serde_json::from_str(&content).is_ok_and(|embedded: Embedded| {
        embedded
            .tags
            .iter()
            .any(|tag| matches!(tag.first(), Some(Name::Text(name)) if name == "-"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::testing::Author;

    #[test]
    fn a_repost_may_point_at_a_protected_event_and_not_carry_it() {
        let author = Author::new(1);
        let protected = author.json(1, 1, &[&["-"]], "for you");
        let open = author.json(1, 1, &[&["t", "-"]], "for all");
        let embeds =
            |kind, content: &str| embeds_protected(&author.event::<&str>(2, kind, &[], content));
        assert!(embeds(6, &protected));
        assert!(embeds(16, &format!("\n {protected} ")));
        assert!(embeds(
            6,
            r#"{"tags":[["e",1],["\u002d","x"]],"more":[{}]}"#
        ));
        assert!(!embeds(6, &open));
        assert!(!embeds(6, ""));
        assert!(!embeds(6, "{\"tags\":[[\"-\"]]"));
        assert!(!embeds(1, &protected));
    }
}
