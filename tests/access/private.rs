//! What is taken from, and served to, some only: protected events (NIP-70) and gift wraps (NIP-59).

use crate::Peer;
use crate::common::{Author, Launch, id_of, now};

const WRAP: u16 = 1_059;
const WRAP_EPHEMERAL: u16 = 21_059;

#[test]
fn a_protected_event_comes_from_its_author_only() {
    let relay = Launch::new().start();
    let (author, other) = (Author::new(1), Author::new(2));
    for kind in [1, 20_001, 30_000] {
        let event = author.json(now(), kind, &[&["-"]], "mine");
        let mut peer = Peer::connect(&relay);
        let (accepted, reason) = peer.publish(&event);
        assert!(
            !accepted && reason.starts_with("auth-required: "),
            "{reason}"
        );
        assert!(peer.login(&other).0);
        let (accepted, reason) = peer.publish(&event);
        assert!(!accepted && reason.starts_with("restricted: "), "{reason}");
        assert!(peer.login(&author).0);
        assert_eq!(peer.publish(&event), (true, String::new()));
    }
    // It is read by anybody.
    let mut peer = Peer::connect(&relay);
    assert_eq!(peer.req("q", "{}").len(), 2);
}

#[test]
fn a_gift_wrap_is_served_to_its_addressee_only() {
    let relay = Launch::new().start();
    let (sender, addressee, other) = (Author::new(1), Author::new(2), Author::new(3));
    let to = addressee.pubkey_hex();
    let wrap = |kind, age: u64| {
        let text = format!("{kind} {age}");
        sender.json(now() - age, kind, &[&["p", &to]], &text)
    };
    let stored = wrap(WRAP, 10);
    let visible = sender.json(now() - 20, 1, &[&["p", &to]], "for all");
    let mut publisher = Peer::of(&relay, &sender);
    assert!(publisher.publish(&stored).0);
    assert!(publisher.publish(&visible).0);

    let mut reader = Peer::of(&relay, &addressee);
    // Two keys, of which one may see it.
    let mut both = Peer::of(&relay, &other);
    assert!(both.login(&addressee).0);
    let mut late = Peer::connect(&relay);
    let strangers = [Peer::of(&relay, &other), Peer::connect(&relay), publisher];
    let mut strangers = strangers.into_iter().collect::<Vec<_>>();
    let (id, visible) = (id_of(&stored).to_owned(), id_of(&visible).to_owned());
    let by_id = format!("{{\"ids\":[\"{id}\"]}}");
    let by_tag = format!("{{\"#p\":[\"{to}\"]}}");
    let by_author = format!("{{\"authors\":[\"{}\"]}}", sender.pubkey_hex());
    let by_kind = format!("{{\"kinds\":[{WRAP},{WRAP_EPHEMERAL}]}}");
    // History and counts.
    for (filter, notes) in [
        (&by_id[..], 0),
        (&by_kind, 0),
        (&by_tag, 1),
        (&by_author, 1),
        ("{}", 1),
        ("{\"limit\":1}", 0),
    ] {
        for peer in [&mut reader, &mut both] {
            let found = peer.req("h", filter);
            assert_eq!(found[0], id, "{filter}");
            assert_eq!(found.len(), 1 + notes, "{filter}");
            if !filter.contains("limit") {
                assert_eq!(peer.count(filter), 1 + notes as u64, "{filter}");
            }
            peer.send("[\"CLOSE\",\"h\"]");
        }
        for peer in strangers.iter_mut().chain([&mut late]) {
            let found = peer.req("h", filter);
            // The limit is met by what can be seen.
            let notes = if filter.contains("limit") { 1 } else { notes };
            assert_eq!(found, vec![visible.clone(); notes], "{filter}");
            if !filter.contains("limit") {
                assert_eq!(peer.count(filter), notes as u64, "{filter}");
            }
            peer.send("[\"CLOSE\",\"h\"]");
        }
    }
    // Live, also for a key that logs in after it has subscribed.
    for peer in strangers
        .iter_mut()
        .chain([&mut reader, &mut both, &mut late])
    {
        peer.req(
            "l",
            &format!("{{\"kinds\":[1,{WRAP},{WRAP_EPHEMERAL}],\"limit\":0}}"),
        );
    }
    assert!(late.login(&addressee).0);
    let mut publisher = Peer::connect(&relay);
    let live = [wrap(WRAP, 3), wrap(WRAP_EPHEMERAL, 2)];
    for event in &live {
        assert!(publisher.publish(event).0);
    }
    let last = sender.json::<&str>(now(), 1, &[], "the last one");
    assert!(publisher.publish(&last).0);
    let next = |peer: &mut Peer| {
        let message = peer.next();
        assert_eq!(
            (&message[0], &message[1]),
            (&"EVENT".into(), &"l".into()),
            "{message}"
        );
        message[2]["id"].as_str().unwrap().to_owned()
    };
    let expected: Vec<&str> = live
        .iter()
        .chain([&last])
        .map(|event| id_of(event))
        .collect();
    for peer in [&mut reader, &mut both, &mut late] {
        let mut found = [next(peer), next(peer), next(peer)];
        // What is not stored may overtake what is.
        found.sort_by_key(|id| expected.iter().position(|other| other == id));
        assert_eq!(found, *expected);
    }
    for peer in &mut strangers {
        assert_eq!(next(peer), id_of(&last));
        peer.expect_open();
    }
}
