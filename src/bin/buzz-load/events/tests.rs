//! Events against another implementation, and the shares that queries need.

use super::*;
use std::collections::HashMap;
use std::io::Write;

fn body(signed: &Signed) -> serde_json::Value {
    serde_json::from_slice::<serde_json::Value>(&signed.message).unwrap()[1].clone()
}

#[test]
fn events_are_valid_by_another_implementation() {
    use nostr_sdk::JsonUtil;
    let (stored, fresh) = (Maker::stored(7, STORED_TIME_DEFAULT), Maker::fresh(9));
    let login = sign_login(&keypair("x"), "ws://h/\"", "a\\\"b", 5);
    let all = (0..50).map(|index| stored.sign_stored(index));
    let all = all.chain((0..50).map(|index| fresh.sign_fresh(index, 1_800_000_000)));
    for signed in all.chain([login, fresh.sign_topic(0, 5, 20_001, "x")]) {
        let event = nostr_sdk::Event::from_json(body(&signed).to_string()).unwrap();
        event.verify().unwrap();
        assert_eq!(short(event.id.as_bytes()), signed.id);
    }
}

#[test]
fn the_same_seed_gives_the_same_events_and_another_gives_others() {
    let maker = Maker::stored(7, STORED_TIME_DEFAULT);
    let again = Maker::stored(7, STORED_TIME_DEFAULT);
    assert_eq!(maker.sign_stored(3).message, again.sign_stored(3).message);
    assert_ne!(
        maker.sign_stored(3).message,
        Maker::stored(8, STORED_TIME_DEFAULT).sign_stored(3).message
    );
    assert_ne!(
        Maker::fresh(1).sign_fresh(0, 5).message,
        Maker::fresh(2).sign_fresh(0, 5).message
    );
}

#[test]
fn what_a_query_sees_is_what_is_sent() {
    let maker = Maker::stored(1, STORED_TIME_DEFAULT);
    for index in 0..50 {
        let (stored, sent) = (maker.stored_event(index), body(&maker.sign_stored(index)));
        assert_eq!(sent["id"], const_hex::encode(stored.id));
        assert_eq!(sent["pubkey"], stored.pubkey);
        assert_eq!(sent["kind"], stored.kind);
        assert_eq!(sent["created_at"], stored.created_at);
        assert_eq!(sent["tags"].as_array().unwrap().len(), stored.tags.len());
    }
}

#[test]
fn sizes_and_shares_suit_the_queries() {
    let maker = Maker::stored(1, STORED_TIME_DEFAULT);
    let count = 20_000;
    let mut notes: HashMap<String, usize> = HashMap::new();
    let mut threads: HashMap<String, usize> = HashMap::new();
    for index in 0..count {
        let event = maker.stored_event(index);
        if event.kind == 1 {
            *notes.entry(event.pubkey).or_default() += 1;
        }
        for (_, value) in event.tags.into_iter().filter(|(name, _)| *name == b'e') {
            *threads.entry(value).or_default() += 1;
        }
    }
    // A fifth of the usual 100 000: a hundred there are twenty here.
    assert!(notes.values().filter(|notes| **notes >= 20).count() >= 80);
    assert!(notes.values().any(|notes| *notes >= 100));
    assert!(threads.values().filter(|events| **events >= 20).count() >= 20);
    let bytes: usize = (0..300)
        .map(|index| maker.sign_stored(index).message.len() - 10)
        .sum();
    assert!((670..730).contains(&(bytes / 300)), "{}", bytes / 300);
}

#[test]
fn a_file_is_read_in_both_forms_and_bad_lines_are_named() {
    let maker = Maker::stored(1, STORED_TIME_DEFAULT);
    let (first, second) = (maker.sign_stored(0), maker.sign_stored(1));
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(
        file,
        "{}",
        String::from_utf8(first.message.clone()).unwrap()
    )
    .unwrap();
    writeln!(file, "\n{}", body(&second)).unwrap();
    let events = read_file(file.path()).unwrap();
    assert_eq!(events.len(), 2);
    assert_eq!(events[0].0.message, first.message);
    assert_eq!(events[0].1, maker.stored_event(0));
    assert_eq!(events[1].0.id, second.id);
    writeln!(file, "{{}}").unwrap();
    assert!(
        read_file(file.path())
            .unwrap_err()
            .to_string()
            .contains(":4:")
    );
}

#[test]
fn dice_stay_within_bounds() {
    let mut dice = Dice::new(1, 2);
    for _ in 0..10_000 {
        assert!(dice.below(3) < 3);
        assert!(dice.skewed(5) < 5);
    }
}
