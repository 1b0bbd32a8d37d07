//! Reposts of protected events (NIP-70): they must not embed what they repost.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::event::Event;
use super::kind;

/// Whether what a repost embeds is protected. Anything may stand beside the tags: a text that is not
/// quite an event gives it away as well. Where tags come twice readers disagree on which count, so
/// all do.
struct Embedded {
    is_protected: bool,
}

impl<'de> Deserialize<'de> for Embedded {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Embedded, D::Error> {
        from.deserialize_map(Members)
    }
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Embedded;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Embedded, A::Error> {
        let mut is_protected = false;
        while let Some(name) = members.next_key::<String>()? {
            if name == "tags" {
                let tags: Vec<Vec<Name>> = members.next_value()?;
                let names = tags.iter().filter_map(|tag| tag.first());
                is_protected |= names.into_iter().any(Name::is_protection);
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Embedded { is_protected })
    }
}

/// A tag's string, or whatever stands in its place.
#[derive(Deserialize)]
#[serde(untagged)]
enum Name {
    Text(String),
    Other(IgnoredAny),
}

impl Name {
    fn is_protection(&self) -> bool {
        matches!(self, Name::Text(name) if name == "-")
    }
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
    serde_json::from_str(&content).is_ok_and(|embedded: Embedded| embedded.is_protected)
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
        for twice in [
            r#"{"tags":[],"tags":[["-"]]}"#,
            r#"{"tags":[["-"]],"tags":[]}"#,
        ] {
            assert!(embeds(6, twice), "{twice}");
        }
        assert!(!embeds(6, &open));
        assert!(!embeds(6, ""));
        assert!(!embeds(6, "{\"tags\":[[\"-\"]]"));
        assert!(!embeds(1, &protected));
    }
}
