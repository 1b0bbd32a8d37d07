//! NIP-13 and NIP-70: what an event must have, or must not carry.

use sha2::{Digest, Sha256};

use crate::common::{Author, Launch, Relay, get, id_of, now};
use crate::{refused, start};

/// A note with this many leading zero bits, committed to `target`.
fn mined(author: &Author, bits: u32, target: Option<u32>) -> String {
    let time = now();
    let key = author.pubkey_hex();
    let target = target.map(|target| target.to_string());
    (0u64..)
        .find_map(|nonce| {
            let nonce = nonce.to_string();
            let mut tag = vec!["nonce", nonce.as_str()];
            tag.extend(target.as_deref());
            let tags = serde_json::to_string(&[&tag]).unwrap();
            let text = format!("[0,\"{key}\",{time},1,{tags},\"\"]");
            let id = Sha256::digest(text);
            let zeros = u32::from_be_bytes(id[..4].try_into().unwrap()).leading_zeros();
            (zeros == bits).then(|| author.json(time, 1, &[&tag[..]], ""))
        })
        .unwrap()
}

#[tokio::test]
async fn work_is_asked_for_and_must_be_committed_to() {
    let (relay, mut client) = start(Launch::new().set("BUZZ_MIN_POW_DIFFICULTY", 8)).await;
    let author = Author::new(1);
    for (bits, target) in [(7, Some(8)), (8, Some(7)), (12, Some(7)), (9, None)] {
        let event = mined(&author, bits, target);
        let reason = refused(&mut client, &event).await;
        assert!(reason.starts_with("pow: "), "{bits} {target:?}: {reason}");
    }
    for (bits, target) in [(8, Some(8)), (9, Some(8)), (10, Some(9))] {
        client.publish_all([&mined(&author, bits, target)]).await;
    }
    let document = information(&relay);
    assert_eq!(
        document["limitation"]["min_pow_difficulty"], 8,
        "{document}"
    );
    let (_relay, mut client) = start(Launch::new()).await;
    client.publish_all([&mined(&author, 0, None)]).await;
}

fn information(relay: &Relay) -> serde_json::Value {
    get(relay.address, "/", &[("Accept", "application/nostr+json")]).json()
}

#[tokio::test]
async fn the_document_lists_what_is_done() {
    let (relay, _client) = start(Launch::new()).await;
    let document = information(&relay);
    let nips = serde_json::json!([1, 9, 11, 13, 40, 42, 45, 59, 62, 67, 70]);
    assert_eq!(document["supported_nips"], nips);
}

#[tokio::test]
async fn a_repost_does_not_carry_a_protected_event() {
    let (_relay, mut client) = start(Launch::new()).await;
    let (author, fan) = (Author::new(1), Author::new(2));
    let protected = author.json(now(), 1, &[&["-"]], "");
    let open = author.json(now(), 1, &[&["t", "-"]], "");
    for kind in [6, 16] {
        let tags: &[&[&str]] = &[&["e", id_of(&protected)]];
        let reason = refused(&mut client, &fan.json(now(), kind, tags, &protected)).await;
        assert!(reason.starts_with("invalid: "), "{reason}");
        let pointing = fan.json(now(), kind, tags, "");
        client
            .publish_all([&pointing, &fan.json(now(), kind, tags, &open)])
            .await;
    }
}
