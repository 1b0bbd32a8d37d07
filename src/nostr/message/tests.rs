use serde_json::{Value, json};

use super::*;
use crate::nostr::testing::Author;

fn parse(text: &str) -> Result<ClientMessage, MessageError> {
    ClientMessage::parse(text, &ParseBounds::default())
}

/// The answer to a message that is refused.
fn refusal(text: &str) -> Value {
    let mut out = Vec::new();
    parse(text).expect_err(text).write(&mut out);
    serde_json::from_slice(&out).expect("the answer is JSON")
}

#[test]
fn events_are_read_with_and_without_white_space() {
    let json = Author::new(1).json(5, 1, &[&["t", "x"]], "hi");
    let spaced = json
        .replace(',', " ,\n")
        .replace('[', "[\t")
        .replace(':', " : ");
    for text in [
        format!("[\"EVENT\",{json}]"),
        format!(" [ \"EVENT\" , {spaced} ] "),
        format!("[\"\\u0045VENT\",{json}]"),
    ] {
        let Ok(ClientMessage::Event(event)) = parse(&text) else {
            panic!("{text}")
        };
        assert_eq!(event.json(), json);
        assert!(event.id_matches());
    }
    let Ok(ClientMessage::Auth(event)) = parse(&format!("[\"AUTH\",{json}]")) else {
        panic!()
    };
    assert_eq!(event.json(), json);
}

#[test]
fn requests_are_read() {
    let Ok(ClientMessage::Req { sub, filters }) =
        parse(r##"["REQ","a\u0022b",{"kinds":[3,1,1]},{"#t":["x"],"limit":0}]"##)
    else {
        panic!()
    };
    assert_eq!(sub.as_json(), r#""a\"b""#);
    assert_eq!(filters[0].kinds, Some(vec![1, 3]));
    assert_eq!(filters[1].tags, [(b't', vec![b"x"[..].into()])]);
    assert_eq!(filters[1].limit, Some(0));
    assert!(matches!(
        parse(r#"["COUNT","a",{}]"#),
        Ok(ClientMessage::Count { .. })
    ));
    assert!(matches!(
        parse(r#"[ "CLOSE" , "a" ]"#),
        Ok(ClientMessage::Close { .. })
    ));
}

#[test]
fn one_subscription_is_one_id_however_it_was_escaped() {
    let sub = |text: &str| match parse(text) {
        Ok(ClientMessage::Close { sub }) => sub,
        other => panic!("{other:?}"),
    };
    assert_eq!(sub(r#"["CLOSE","a\/\u00e9"]"#), sub("[\"CLOSE\",\"a/é\"]"));
    assert_ne!(sub(r#"["CLOSE","a"]"#), sub(r#"["CLOSE","A"]"#));
}

#[test]
fn an_id_has_1_to_64_characters() {
    let parse = |length| parse(&format!("[\"CLOSE\",\"{}\"]", "\u{1f600}".repeat(length)));
    assert!(parse(1).is_ok() && parse(64).is_ok());
    assert!(matches!(parse(0), Err(MessageError::Notice(_))));
    assert!(matches!(parse(65), Err(MessageError::Notice(_))));
    assert!(matches!(parse(100_000), Err(MessageError::Notice(_))));
}

#[test]
fn a_bad_request_is_closed_by_its_id() {
    let cases = [
        (r#"["REQ","s"]"#, "invalid: no filter given"),
        (r#"["COUNT","s"]"#, "invalid: no filter given"),
        (
            r#"["REQ","s",{"search":"x"}]"#,
            "unsupported: unknown filter field search",
        ),
        (
            r##"["REQ","s",{"#tt":["x"]}]"##,
            "unsupported: unknown filter field #tt",
        ),
        (
            r#"["REQ","s",{"kinds":[70000]}]"#,
            "invalid: kinds must be integers from 0 to 65535",
        ),
        (
            r#"["REQ","s",{"kinds":1}]"#,
            "invalid: kinds must be integers from 0 to 65535",
        ),
        (r#"["REQ","s",{},[]]"#, "invalid: malformed message"),
        (r#"["REQ","s",{}"#, "invalid: malformed message"),
        (r#"["REQ","s",{}]]"#, "invalid: malformed message"),
        (r#"["REQ","s",{},]"#, "invalid: malformed message"),
        (r#"["REQ","s" {}]"#, "invalid: malformed message"),
        (r#"["CLOSE","s",{}]"#, "invalid: too many filters"),
    ];
    for (text, reason) in cases {
        assert_eq!(refusal(text), json!(["CLOSED", "s", reason]), "{text}");
    }
    // Deep nesting ends where it stands, without recursion.
    let deep = format!("[\"REQ\",\"s\",{}", "[".repeat(500_000));
    assert_eq!(
        refusal(&deep),
        json!(["CLOSED", "s", "invalid: malformed message"])
    );
    let deep = format!("[\"REQ\",\"s\",{{\"ids\":{}", "[".repeat(500_000));
    let reason = "invalid: ids must be 64 lower-case hex digits each";
    assert_eq!(refusal(&deep), json!(["CLOSED", "s", reason]));
}

#[test]
fn filters_and_values_are_bounded_over_a_whole_message() {
    let bounds = ParseBounds {
        filters_max: 2,
        filter_values_max: 4,
        values_per_filter_max: 3,
        subid_length_max: 8,
    };
    let parse = |text: &str| ClientMessage::parse(text, &bounds);
    let reason = |text: &str| match parse(text) {
        Err(MessageError::Sub { reason, .. }) => reason.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(parse(r#"["REQ","s",{"kinds":[1,2]},{"kinds":[1,2]}]"#).is_ok());
    let values = reason(r#"["REQ","s",{"kinds":[1,2]},{"kinds":[1,2,3]}]"#);
    assert_eq!(values, "invalid: too many values in filters");
    // Repeated values cost as they come.
    let values = reason(r##"["REQ","s",{"#t":["a","a","a"]},{"#t":["a","a"]}]"##);
    assert_eq!(values, "invalid: too many values in filters");
    let values = reason(r##"["REQ","s",{"kinds":[1,2],"#t":["a","a"]}]"##);
    assert_eq!(values, "invalid: too many values in a filter");
    assert_eq!(
        reason(r#"["REQ","s",{},{},{}]"#),
        "invalid: too many filters"
    );
}

#[test]
fn a_bad_event_is_answered_by_its_id_where_it_has_one() {
    let json = Author::new(1).json::<&str>(5, 1, &[], "hi");
    let id = &json[7..71];
    let ok = |reason: &str| json!(["OK", id, false, format!("invalid: {reason}")]);
    let moved = json
        .replace(&format!("\"id\":\"{id}\","), "")
        .replace("\"}", &format!("\",\"id\":\"{id}\"}}"));
    for json in [&json, &moved] {
        let number = json.replace(":5,", ":5.0,");
        let reason = "created_at must be an integer from 0 to 2^63-1";
        assert_eq!(refusal(&format!("[\"EVENT\",{number}]")), ok(reason));
        assert_eq!(refusal(&format!("[\"AUTH\",{number}]")), ok(reason));
        let nested = json.replace("\"hi\"", "{\"id\":[[\"id\",{}]]}");
        assert_eq!(
            refusal(&format!("[\"EVENT\",{nested}]")),
            ok("content must be a string")
        );
        assert_eq!(
            refusal(&format!("[\"EVENT\",{json},1]")),
            ok("text after the event")
        );
        assert_eq!(
            refusal(&format!("[\"EVENT\",{json}")),
            ok("text after the event")
        );
        assert_eq!(
            refusal(&format!("[\"EVENT\",{json}]x")),
            ok("text after the event")
        );
    }
    let notices = [
        (r#"["EVENT",{}]"#, "invalid: event key expected"),
        (r#"["EVENT",1]"#, "invalid: event is not an object"),
        (r#"["EVENT"]"#, "invalid: message ends after its label"),
        (
            r#"["EVENT",{"id":"00"}]"#,
            "invalid: id must be 64 lower-case hex digits",
        ),
        (r#"["AUTH","challenge"]"#, "invalid: event is not an object"),
    ];
    for (text, notice) in notices {
        assert_eq!(refusal(text), json!(["NOTICE", notice]), "{text}");
    }
}

#[test]
fn what_is_no_message_gets_a_notice() {
    let cases = [
        ("", "invalid: message is not a JSON array"),
        ("{}", "invalid: message is not a JSON array"),
        ("[]", "invalid: message without a label"),
        ("[1]", "invalid: message without a label"),
        ("[\"REQ\"]", "invalid: message ends after its label"),
        ("[\"REQ\",1]", "invalid: subscription id is not a string"),
        ("[\"REQ\",\"\"]", "invalid: subscription id is empty"),
        (
            "[\"NEG-OPEN\",\"s\"]",
            "unsupported: unknown message NEG-OPEN",
        ),
        ("[\"req\",\"s\"]", "unsupported: unknown message req"),
    ];
    for (text, notice) in cases {
        assert_eq!(refusal(text), json!(["NOTICE", notice]), "{text}");
    }
    // What is repeated to the client is bounded and escaped.
    let shown = refusal(&format!("[\"\\\"\\n{}\"]", "é".repeat(1_000)));
    let expected = format!("unsupported: unknown message \"\n{}", "é".repeat(30));
    assert_eq!(shown, json!(["NOTICE", expected]));
}

#[test]
fn answers_are_json_whatever_they_hold() {
    let sub = SubId::new("a\"\n\u{1}é", 64).unwrap();
    let reason = Reason::new(Prefix::AuthRequired, "say \"please\"\t");
    let written = |write: &dyn Fn(&mut Vec<u8>)| -> Value {
        let mut out = b"[".to_vec();
        write(&mut out);
        out.push(b']');
        let Value::Array(mut one) = serde_json::from_slice(&out).unwrap() else {
            panic!()
        };
        assert_eq!(one.len(), 1);
        one.remove(0)
    };
    let id = "ab".repeat(32);
    assert_eq!(
        written(&|out| write_ok(out, &[0xab; 32], true, None)),
        json!(["OK", id, true, ""])
    );
    assert_eq!(
        written(&|out| write_ok(out, &[0xab; 32], false, Some(&reason))),
        json!(["OK", id, false, "auth-required: say \"please\"\t"])
    );
    assert_eq!(
        written(&|out| write_eose(out, &sub, None)),
        json!(["EOSE", "a\"\n\u{1}é"])
    );
    assert_eq!(
        written(&|out| write_eose(out, &sub, Some(EoseHint::Finish))),
        json!(["EOSE", "a\"\n\u{1}é", ["finish"]])
    );
    assert_eq!(
        written(&|out| write_eose(out, &sub, Some(EoseHint::More))),
        json!(["EOSE", "a\"\n\u{1}é", ["more"]])
    );
    assert_eq!(
        written(&|out| write_closed(out, &sub, &reason)),
        json!(["CLOSED", "a\"\n\u{1}é", "auth-required: say \"please\"\t"])
    );
    assert_eq!(
        written(&|out| write_notice(out, "\\")),
        json!(["NOTICE", "\\"])
    );
    assert_eq!(written(&|out| write_auth(out, "c")), json!(["AUTH", "c"]));
    assert_eq!(
        written(&|out| write_count(out, &sub, 5, None)),
        json!(["COUNT", "a\"\n\u{1}é", { "count": 5 }])
    );
    assert_eq!(
        written(&|out| write_count(out, &sub, 5, Some("00ff"))),
        json!(["COUNT", "a\"\n\u{1}é", { "count": 5, "hll": "00ff" }])
    );
    let event = Author::new(1).note(1, "x");
    let framed = |out: &mut Vec<u8>| {
        event_prefix(out, &sub);
        out.extend_from_slice(event.json().as_bytes());
        out.push(b']');
    };
    let whole: Value = serde_json::from_str(event.json()).unwrap();
    assert_eq!(written(&framed), json!(["EVENT", "a\"\n\u{1}é", whole]));
}
