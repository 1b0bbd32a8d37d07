//! What the store itself keeps out of an import, and what an import is not asked for.

use crate::common::{Author, Launch, Relay, id_of, now};
use crate::{Ran, exported, import, lines, notes};

/// Both ways, each with a folder of its own.
fn both_ways(launch: &Launch, check: impl Fn(&Launch, &str)) {
    for runs in [false, true] {
        let launch = launch
            .clone()
            .folder(tempfile::tempdir().expect("a folder").keep().join("data"));
        let relay: Option<Relay> = runs.then(|| launch.start());
        check(&launch, if runs { "with a relay" } else { "alone" });
        drop(relay);
        let _ = std::fs::remove_dir_all(launch.data_dir().parent().expect("a parent"));
    }
}

fn import_all<S: AsRef<str>>(launch: &Launch, events: &[S]) -> Ran {
    import(launch, lines(events))
}

#[test]
fn a_second_import_finds_duplicates_and_an_old_version_is_no_fault() {
    both_ways(&Launch::new(), |launch, way| {
        let author = Author::new(1);
        let old = author.json::<&str>(now() - 10, 0, &[], "old");
        let new = author.json::<&str>(now(), 0, &[], "new");
        let mut events = notes(2, 300);
        events.push(new.clone());
        import_all(launch, &events)
            .expect(0, &[])
            .counts([301, 0, 0, 0]);
        events.push(old);
        // A duplicate within the input, too.
        events.push(events[0].clone());
        let ran = import_all(launch, &events).expect(0, &[]);
        ran.counts([0, 302, 1, 0]);
        events.truncate(301);
        assert_eq!(exported(launch, &[]), lines(&events), "{way}");
    });
}

#[test]
fn an_id_that_is_stored_with_another_signature_is_refused() {
    both_ways(&Launch::new(), |launch, _| {
        let author = Author::new(1);
        let one = author.json::<&str>(now(), 1, &[], "x");
        let other = author.signed_otherwise(&one);
        assert!(id_of(&one) == id_of(&other) && one != other);
        let ran = import_all(launch, &[&one, &other, &one]).expect(1, &[]);
        ran.counts([1, 1, 0, 1]);
        assert_eq!(
            ran.told(),
            [(2, "invalid: this id is stored with another signature")]
        );
        assert_eq!(exported(launch, &[]), lines(&[one]));
    });
}

#[test]
fn deletions_work_whichever_comes_first() {
    both_ways(&Launch::new(), |launch, _| {
        let author = Author::new(1);
        let [one, two, three] = &notes(1, 3)[..] else {
            panic!("three")
        };
        let deletes = author.json(now(), 5, &[&["e", id_of(one)], &["e", id_of(two)]], "");
        let ran = import_all(launch, &[one, &deletes, two, one, three]).expect(1, &[]);
        ran.counts([3, 0, 0, 2]);
        let reason = "blocked: this event was deleted at its author's request";
        assert_eq!(ran.told(), [(3, reason), (4, reason)]);
        assert_eq!(exported(launch, &[]), lines(&[&deletes, three]));
        // Also from a store that was filled by another import.
        let ran = import_all(launch, &[one, two, three]).expect(1, &[]);
        ran.counts([0, 1, 0, 2]);
    });
}

#[test]
fn banned_authors_are_refused_and_stay_so() {
    both_ways(&Launch::new(), |launch, _| {
        let banned = Author::new(1);
        import_all(launch, &notes(2, 1)).expect(0, &[]);
        let ban = launch
            .clone()
            .arg("access")
            .arg("ban")
            .arg(&banned.pubkey_hex());
        ban.run().expect(0, &[]);
        let mut events = notes(1, 2);
        events.extend(notes(3, 1));
        let ran = import_all(launch, &events).expect(1, &[]);
        ran.counts([1, 0, 0, 2]);
        let reason = "blocked: the author is banned";
        assert_eq!(ran.told(), [(1, reason), (2, reason)]);
    });
}

#[test]
fn a_request_to_vanish_is_followed_if_it_names_this_relay() {
    let launch = Launch::new().set("BUZZ_RELAY_URL", "wss://relay.example");
    both_ways(&launch, |launch, _| {
        let author = Author::new(1);
        let vanish = |at, url| author.json(at, 62, &[&["relay", url]], "");
        let ours = vanish(now(), "wss://relay.example/");
        let mut events = notes(1, 200);
        events.extend([
            vanish(now(), "wss://other.example"),
            vanish(now() + 100_000, "ALL_RELAYS"),
            ours.clone(),
        ]);
        let other = notes(2, 2);
        events.extend(other.clone());
        let ran = import_all(launch, &events).expect(1, &[]);
        ran.counts([203, 0, 0, 2]);
        assert_eq!(
            ran.told(),
            [
                (
                    201,
                    "invalid: the request to vanish does not name this relay"
                ),
                (202, "invalid: the request to vanish is dated too far ahead"),
            ]
        );
        let ran = import_all(launch, &events[..2]).expect(1, &[]);
        let reason = "blocked: this key has asked to vanish, with all of its past";
        assert_eq!(ran.told(), [(1, reason), (2, reason)]);
        let left = exported(launch, &[]);
        let mut left: Vec<&str> = left.lines().collect();
        left.sort_unstable();
        let mut expected = vec![ours.as_str(), other[0].as_str(), other[1].as_str()];
        expected.sort_unstable();
        assert_eq!(left, expected);
    });
}

#[test]
fn logins_work_and_the_present_are_not_asked_for() {
    let launch = Launch::new()
        .set("BUZZ_REQUIRE_AUTH", "true")
        .set("BUZZ_MIN_POW_DIFFICULTY", "20")
        .set("BUZZ_CREATED_AT_PAST_SECONDS", "60");
    both_ways(&launch, |launch, _| {
        let author = Author::new(1);
        let events = [
            author.json::<&str>(5, 1, &[], "long ago"),
            author.json::<&str>(now() + 1_000_000, 1, &[], "ahead"),
            author.json(now(), 1, &[&["-"]], "protected"),
            author.json(
                now(),
                1_059,
                &[&["p", &Author::new(2).pubkey_hex()]],
                "sealed",
            ),
        ];
        import_all(launch, &events)
            .expect(0, &[])
            .counts([4, 0, 0, 0]);
        assert_eq!(exported(launch, &[]), lines(&events));
    });
}
