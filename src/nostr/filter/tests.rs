use super::*;
use crate::nostr::testing::Author;

fn parse(text: &str) -> Result<Filter, String> {
    Filter::parse(text, 100).map_err(|reason| reason.to_string())
}

#[test]
fn a_long_tag_value_is_no_value() {
    let with =
        |length: usize| Filter::parse(&format!("{{\"#t\":[\"{}\"]}}", "x".repeat(length)), 9);
    assert!(with(FILTER_VALUE_BYTES_MAX).is_ok());
    let reason = with(FILTER_VALUE_BYTES_MAX + 1).unwrap_err().to_string();
    assert_eq!(
        reason,
        "invalid: tag values must be strings of at most 1024 bytes"
    );
}

#[test]
fn every_field_is_read_sorted_and_without_repetition() {
    let (low, high) = ("0".repeat(64), "f".repeat(64));
    let filter = parse(&format!(
        r##" {{"ids":["{high}","{low}","{high}"],"authors":["{low}"],"kinds":[65535,0,0],
            "#p":["{high}"],"#E":["any","A\u000a"],"#e":[],
            "since":1,"until":18446744073709551615,"limit":0}} "##
    ))
    .unwrap();
    let expected = Filter {
        ids: Some(vec![[0; 32], [0xff; 32]]),
        authors: Some(vec![[0; 32]]),
        kinds: Some(vec![0, 65_535]),
        tags: vec![
            (b'E', vec![b"A\n"[..].into(), b"any"[..].into()]),
            (b'e', vec![]),
            (b'p', vec![high.as_bytes().into()]),
        ],
        since: Some(1),
        until: Some(u64::MAX),
        limit: Some(0),
    };
    assert_eq!(filter, expected);
    assert_eq!(filter.value_count(), 8);
    assert_eq!(parse("{}").unwrap(), Filter::default());
}

#[test]
fn unclear_filters_are_refused() {
    let id = "a".repeat(64);
    let cases = [
        (
            r#"{"kinds":[1],"kinds":[1]}"#.to_owned(),
            "invalid: filter field given twice",
        ),
        (
            r##"{"#t":[],"#t":[]}"##.to_owned(),
            "invalid: filter field given twice",
        ),
        (
            r#"{"since":1,"since":1}"#.to_owned(),
            "invalid: filter field given twice",
        ),
        (
            format!("{{\"ids\":[\"{}\"]}}", id.to_uppercase()),
            "invalid: ids must be 64 lower-case hex digits each",
        ),
        (
            format!("{{\"ids\":[\"{}\"]}}", &id[1..]),
            "invalid: ids must be 64 lower-case hex digits each",
        ),
        (
            "{\"ids\":[null]}".to_owned(),
            "invalid: ids must be 64 lower-case hex digits each",
        ),
        (
            "{\"ids\":null}".to_owned(),
            "invalid: ids must be 64 lower-case hex digits each",
        ),
        (
            "{\"authors\":[\"x\"]}".to_owned(),
            "invalid: authors must be 64 lower-case hex digits each",
        ),
        (
            "{\"#e\":[\"x\"]}".to_owned(),
            "invalid: #e and #p must be 64 lower-case hex digits each",
        ),
        (
            "{\"#p\":[\"x\"]}".to_owned(),
            "invalid: #e and #p must be 64 lower-case hex digits each",
        ),
        (
            "{\"#t\":[1]}".to_owned(),
            "invalid: tag values must be strings of at most 1024 bytes",
        ),
        (
            "{\"#t\":\"x\"}".to_owned(),
            "invalid: tag values must be strings of at most 1024 bytes",
        ),
        (
            "{\"kinds\":[-1]}".to_owned(),
            "invalid: kinds must be integers from 0 to 65535",
        ),
        (
            "{\"kinds\":[1.0]}".to_owned(),
            "invalid: kinds must be integers from 0 to 65535",
        ),
        (
            "{\"since\":-1}".to_owned(),
            "invalid: since, until and limit must be integers, not negative",
        ),
        (
            "{\"until\":1.5}".to_owned(),
            "invalid: since, until and limit must be integers, not negative",
        ),
        (
            "{\"limit\":\"1\"}".to_owned(),
            "invalid: since, until and limit must be integers, not negative",
        ),
        (
            "{\"#é\":[]}".to_owned(),
            "unsupported: unknown filter field #é",
        ),
        (
            "{\"#1\":[]}".to_owned(),
            "unsupported: unknown filter field #1",
        ),
        (
            "{\"#\":[]}".to_owned(),
            "unsupported: unknown filter field #",
        ),
        ("{\"\":[]}".to_owned(), "unsupported: unknown filter field "),
        ("[]".to_owned(), "invalid: filter is not a JSON object"),
        ("{}{}".to_owned(), "invalid: filter is not a JSON object"),
        ("{".to_owned(), "invalid: filter is not a JSON object"),
    ];
    for (text, reason) in cases {
        assert_eq!(parse(&text), Err(reason.to_owned()), "{text}");
    }
}

#[test]
fn values_are_bounded() {
    let filter = |count: usize| {
        let kinds = vec!["1"; count].join(",");
        Filter::parse(&format!("{{\"kinds\":[{kinds}]}}"), 5)
    };
    assert!(filter(5).is_ok());
    assert_eq!(filter(6).unwrap_err().text(), "too many values in filters");
}

#[test]
fn limits_have_no_say_in_matching() {
    let event = Author::new(1).event(10, 1, &[&["t", "a"], &["t", "b"], &["x"]], "");
    let passes = |text: &str| parse(text).unwrap().matches(&event);
    assert!(passes(r#"{"limit":0}"#));
    assert!(passes(r#"{"since":10,"until":10}"#));
    assert!(!passes(r#"{"since":11}"#));
    assert!(!passes(r#"{"until":9}"#));
    assert!(passes(r##"{"#t":["b","c"]}"##));
    assert!(
        !passes(r##"{"#t":["b"],"#x":[""]}"##),
        "a tag without a value has none"
    );
    assert!(!passes(r#"{"kinds":[]}"#));
}

#[test]
fn a_filter_is_read_again_as_it_was() {
    let id = "ab".repeat(32);
    for text in [
        "{}".to_owned(),
        r#"{"kinds":[],"limit":0}"#.to_owned(),
        format!(r##"{{"ids":["{id}"],"authors":["{id}"],"kinds":[7,1,1],"#p":["{id}"]}}"##),
        r##"{"#t":["b","a\"\n\u00e9"],"#T":[],"since":1,"until":9007199254740993,"limit":5}"##
            .to_owned(),
    ] {
        let filter = Filter::parse(&text, 100).unwrap();
        let json = filter.to_json();
        assert_eq!(Filter::parse(&json, 100).unwrap(), filter, "{json}");
    }
}
