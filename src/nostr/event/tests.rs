use super::*;
use crate::nostr::testing::Author;

#[test]
fn a_signed_event_reads_back() {
    let author = Author::new(1);
    let json = author.json(
        1_700_000_000,
        30_023,
        &[
            &["e", "x"],
            &["d", "a\n\"b"],
            &["-"],
            &["expiration", "1700000001"],
            &["é", "ü"],
        ],
        "line\nnext \u{1f600} \u{1} \\",
    );
    let event = Event::parse(&json).unwrap();
    assert_eq!(event.json(), json);
    assert!(event.id_matches());
    assert_eq!(event.pubkey(), author.pubkey());
    assert_eq!(event.created_at(), 1_700_000_000);
    assert_eq!(event.kind(), 30_023);
    assert_eq!(event.class(), Class::Addressable);
    assert_eq!(event.content(), "line\nnext \u{1f600} \u{1} \\");
    assert_eq!(event.d_tag(), "a\n\"b");
    assert!(event.is_protected());
    assert_eq!(event.expiration(), Some(1_700_000_001));
    let index: Vec<_> = event.index_tags().collect();
    assert_eq!(index, [(b'e', &b"x"[..]), (b'd', &b"a\n\"b"[..])]);
    let tags: Vec<Vec<String>> = event
        .tags()
        .map(|tag| tag.iter().map(Cow::into_owned).collect())
        .collect();
    assert_eq!(tags[4], ["é", "ü"]);
    assert_eq!(tags[2], ["-"]);
    assert_eq!(event.json()[ID_RANGE], const_hex::encode(event.id()));
    assert_eq!(event.json()[PUBKEY_RANGE], author.pubkey_hex());
    assert!(event.json()[CREATED_AT_START..].starts_with("1700000000,"));
    let sig = event.json().len() - SIG_FROM_END;
    assert_eq!(event.json()[sig..sig + 128], const_hex::encode(event.sig()));
}
/// What is wrong with an event that was made from a good one.
fn refusal(change: impl Fn(&str) -> String) -> String {
    let json = Author::new(1).json(5, 1, &[&["t", "x"]], "hi");
    assert!(Event::parse(&json).is_ok());
    let changed = change(&json);
    assert_ne!(changed, json);
    Event::parse(&changed)
        .expect_err(&changed)
        .reason
        .to_string()
}

#[test]
fn ambiguous_events_are_refused() {
    let cases = [
        (r#""kind":1"#, r#""kind":1,"kind":1"#, "duplicate event key"),
        (
            r#""kind":1"#,
            r#""kind":1,"seen_on":[]"#,
            "unknown event key",
        ),
        (r#""kind":1"#, r#""k\u0069nd":1"#, "unknown event key"),
        (r#""kind":1,"#, "", "event without kind"),
        (
            r#""kind":1"#,
            r#""kind":65536"#,
            "kind must be an integer from 0 to 65535",
        ),
        (
            r#""kind":1"#,
            r#""kind":-1"#,
            "kind must be an integer from 0 to 65535",
        ),
        (
            r#""kind":1"#,
            r#""kind":1e0"#,
            "kind must be an integer from 0 to 65535",
        ),
        (
            r#""kind":1"#,
            r#""kind":01"#,
            "kind must be an integer from 0 to 65535",
        ),
        (
            r#""kind":1"#,
            r#""kind":"1""#,
            "kind must be an integer from 0 to 65535",
        ),
        (
            r#""kind":1"#,
            r#""kind":null"#,
            "kind must be an integer from 0 to 65535",
        ),
        (
            r#":5,"#,
            r#":9223372036854775808,"#,
            "created_at must be an integer from 0 to 2^63-1",
        ),
        (
            r#":5,"#,
            r#":5.0,"#,
            "created_at must be an integer from 0 to 2^63-1",
        ),
        (
            r#":5,"#,
            r#":,"#,
            "created_at must be an integer from 0 to 2^63-1",
        ),
        (
            r#""hi""#,
            r#""\ud83d""#,
            "bad \\u escape or lone surrogate in a string",
        ),
        (
            r#""hi""#,
            r#""\ude00\ud83d""#,
            "bad \\u escape or lone surrogate in a string",
        ),
        (
            r#""hi""#,
            r#""\ud83d\u0041""#,
            "bad \\u escape or lone surrogate in a string",
        ),
        (
            r#""hi""#,
            r#""\u00g0""#,
            "bad \\u escape or lone surrogate in a string",
        ),
        (r#""hi""#, r#""\x""#, "unknown escape in a string"),
        (r#""hi""#, "\"\t\"", "control character in a string"),
        (r#""hi""#, "null", "content must be a string"),
        (
            r#"[["t","x"]]"#,
            r#"[[]]"#,
            "a tag must be an array of one or more strings",
        ),
        (
            r#"[["t","x"]]"#,
            r#"[["t",1]]"#,
            "a tag must be an array of one or more strings",
        ),
        (
            r#"[["t","x"]]"#,
            r#"[["t",["x"]]]"#,
            "a tag must be an array of one or more strings",
        ),
        (
            r#"[["t","x"]]"#,
            r#"["t"]"#,
            "a tag must be an array of one or more strings",
        ),
        (
            r#"[["t","x"]]"#,
            r#"[["t","x"],]"#,
            "a tag must be an array of one or more strings",
        ),
        (r#"[["t","x"]]"#, r#"{}"#, "tags must be an array"),
        ("\"}", "\"}x", "text after the event"),
        ("\"}", "\",}", "event key expected"),
        ("\"}", "\"", "comma or } expected in an event"),
    ];
    for (good, bad, reason) in cases {
        let found = refusal(|json| json.replace(good, bad));
        assert_eq!(found, format!("invalid: {reason}"), "{bad}");
    }
    let upper = refusal(|json| {
        format!(
            "{}{}",
            json[..71].to_uppercase().replace("ID", "id"),
            &json[71..]
        )
    });
    assert_eq!(upper, "invalid: id must be 64 lower-case hex digits");
    // The only white space is that of JSON.
    for space in ["\u{c}", "\u{b}", "\u{a0}", "\u{2028}", "\u{feff}", "\0"] {
        let found = refusal(|json| json.replace(":1,", &format!(":{space}1,")));
        assert!(found.starts_with("invalid: kind"), "{found}");
        refusal(|json| format!("{json}{space}"));
        refusal(|json| format!("{space}{json}"));
    }
    let prefixed = refusal(|json| format!("{}0x{}", &json[..7], &json[9..]));
    assert_eq!(prefixed, "invalid: id must be 64 lower-case hex digits");
    let short = refusal(|json| json.replacen(&json[147..149], "", 1));
    assert!(short.starts_with("invalid: "), "{short}");
}

#[test]
fn tags_are_bounded() {
    let json = |count: usize| {
        let tags = vec![["t", "x"]; count];
        let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
        Author::new(1).json(1, 1, &tags, "")
    };
    let most = crate::limits::EVENT_TAGS_MAX;
    assert_eq!(Event::parse(&json(most)).unwrap().tags().count(), most);
    assert_eq!(
        Event::parse(&json(most + 1)).unwrap_err().reason.text(),
        "too many tags"
    );
}

#[test]
fn numbers_reach_their_bounds() {
    let author = Author::new(1);
    let event = author.event::<&str>(i64::MAX as u64, u16::MAX, &[], "");
    assert_eq!(
        (event.created_at(), event.kind()),
        (i64::MAX as u64, u16::MAX)
    );
    assert!(event.id_matches());
    let event = author.event::<&str>(0, 0, &[], "");
    assert_eq!((event.created_at(), event.kind()), (0, 0));
    assert!(event.id_matches());
}

#[test]
fn a_prefix_ends_behind_its_event() {
    let json = Author::new(1).json::<&str>(5, 1, &[], "}]\"");
    let (event, length) = Event::parse_prefix(&format!(" {json} ]é")).unwrap();
    assert_eq!((event.json(), length), (&*json, json.len() + 1));
}

#[test]
fn the_first_d_value_is_the_address() {
    let d = |tags: &[&[&str]]| Author::new(1).event(1, 30_000, tags, "").d_tag().to_owned();
    assert_eq!(d(&[]), "");
    assert_eq!(d(&[&["d"]]), "");
    assert_eq!(
        d(&[&["D", "no"], &["dd", "no"], &["d", "yes"], &["d", "later"]]),
        "yes"
    );
    assert_eq!(d(&[&["d", "", "no"]]), "");
    assert_eq!(d(&[&["e", "\n"], &["d", "é\n\u{1f600}"]]), "é\n\u{1f600}");
}

#[test]
fn expiration_is_the_first_that_is_a_number() {
    let at = |values: &[&str]| {
        let tags: Vec<[&str; 2]> = values.iter().map(|value| ["expiration", value]).collect();
        let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
        Author::new(1).event(1, 1, &tags, "").expiration()
    };
    assert_eq!(at(&[]), None);
    assert_eq!(at(&["17"]), Some(17));
    assert_eq!(
        at(&["", "+5", "-5", "5.0", "99999999999999999999", "6", "7"]),
        Some(6)
    );
}
