//! `docs/troubleshooting.md` has messages as its headings. Each of them must be one that the relay
//! can say: its fixed parts stand in the source.

use std::collections::BTreeSet;

use buzz_uring::metrics::{CloseReason, Label, UpgradeRefusal};

use crate::{file, files};

const PAGE: &str = "docs/troubleshooting.md";

/// All of the source, with texts that go on in the next line joined.
fn source() -> String {
    let names = files("src")
        .into_iter()
        .filter(|name| name.ends_with(".rs"));
    let text: String = names.map(|name| file(&name)).collect();
    let mut joined = String::with_capacity(text.len());
    for (number, part) in text.split("\\\n").enumerate() {
        joined.push_str(if number == 0 { part } else { part.trim_start() });
    }
    joined.replace("\\\"", "\"")
}

/// The messages that are headings: what stands between `` ` `` in lines that start with `###`.
fn messages() -> Vec<String> {
    let page = file(PAGE);
    let headings = page.lines().filter_map(|line| line.strip_prefix("### `"));
    headings
        .map(|heading| {
            heading
                .strip_suffix('`')
                .expect("one message a heading")
                .to_owned()
        })
        .collect()
}

#[test]
fn every_message_is_one_that_the_relay_says() {
    let (source, messages) = (source(), messages());
    assert!(messages.len() >= 30, "{}", messages.len());
    let mut seen = BTreeSet::new();
    for message in messages {
        // What clients are told begins with one of NIP-01's words, which is put in front.
        let words = [
            "auth-required",
            "blocked",
            "error",
            "invalid",
            "rate-limited",
            "restricted",
        ];
        let prefix = message
            .split_once(": ")
            .filter(|(word, _)| words.contains(word));
        let message = prefix.map_or(message.as_str(), |(_, rest)| rest);
        // `…` is what differs from case to case.
        for part in message.split('…').map(str::trim) {
            // Too little is found anywhere.
            let is_telling = part.len() > 3;
            assert!(
                !is_telling || source.contains(part),
                "{part:?} of {message:?}"
            );
        }
        assert!(seen.insert(message.to_owned()), "{message:?} comes twice");
    }
}

#[test]
fn every_reason_to_end_or_to_refuse_a_connection_is_explained() {
    let page = file(PAGE);
    let closes = CloseReason::ALL.iter().map(|reason| reason.as_label());
    let refusals = UpgradeRefusal::ALL.iter().map(|reason| reason.as_label());
    for reason in closes.chain(refusals) {
        assert!(page.contains(&format!("| `{reason}` |")), "{reason}");
    }
}
