//! Request heads: the example of RFC 6455 section 1.3, and each rule broken once.

use super::*;

const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

/// The example of section 1.3, with the offers that are to be ignored.
const EXAMPLE: &str = "GET /chat HTTP/1.1\r\n\
    Host: server.example.com\r\n\
    Upgrade: websocket\r\n\
    Connection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    Origin: http://example.com\r\n\
    Sec-WebSocket-Protocol: chat, superchat\r\n\
    Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n\
    Sec-WebSocket-Version: 13\r\n\r\n";

fn parse(text: &str) -> Result<Option<Head<'_>>, HeadError> {
    parse_head(text.as_bytes())
}

fn whole(text: &str) -> Head<'_> {
    parse(text).expect(text).expect(text)
}

/// The upgrade that the example asks for after one replacement.
fn changed(from: &str, to: &str) -> Upgrade<'static> {
    assert!(EXAMPLE.contains(from));
    whole(EXAMPLE.replace(from, to).leak()).upgrade
}

#[test]
fn the_example_of_rfc_6455() {
    let head = whole(EXAMPLE);
    assert_eq!(head.upgrade, Upgrade::WebSocket { key: KEY });
    assert_eq!(
        (head.method, head.target, head.len),
        ("GET", "/chat", EXAMPLE.len())
    );
    assert_eq!(head.host, Some("server.example.com"));

    let mut out = Vec::new();
    write_switching_protocols(&mut out, KEY);
    assert_eq!(
        std::str::from_utf8(&out).unwrap(),
        "HTTP/1.1 101 Switching Protocols\r\n\
         Upgrade: websocket\r\n\
         Connection: Upgrade\r\n\
         Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
    );
}

#[test]
fn split_at_every_byte() {
    let with_frames = [EXAMPLE.as_bytes(), &[0x81, 0x80, 0, 0, 0, 0]].concat();
    for end in 0..EXAMPLE.len() {
        assert_eq!(parse_head(&with_frames[..end]), Ok(None), "{end} bytes");
    }
    for end in EXAMPLE.len()..=with_frames.len() {
        let head = parse_head(&with_frames[..end]).unwrap().unwrap();
        assert_eq!(head, whole(EXAMPLE));
    }
}

#[test]
fn token_lists_in_any_case_and_over_several_lines() {
    let connection = |lines| changed("Connection: Upgrade", lines);
    let upgrade = |lines| changed("Upgrade: websocket\r\n", lines);
    let good = Upgrade::WebSocket { key: KEY };
    for lines in [
        "connection: keep-alive, uPGRADE",
        "Connection: close\r\nConnection: ,Upgrade ,",
        "Connection: upgrade\r\nConnection: close",
    ] {
        assert_eq!(connection(lines), good, "{lines}");
    }
    for lines in [
        "UPGRADE: h2c , WebSocket\r\n",
        "Upgrade: h2c\r\nUpgrade: WEBSOCKET\r\n",
        "Upgrade: websocket\r\nUpgrade: h2c\r\n",
    ] {
        assert_eq!(upgrade(lines), good, "{lines}");
    }
    let bad = Upgrade::Bad(HeadError::Tokens);
    for lines in [
        "Connection: upgraded",
        "Connection: keep-alive",
        "X: Upgrade",
    ] {
        assert_eq!(connection(lines), bad, "{lines}");
    }
    for lines in ["Upgrade: web socket\r\n", "Upgrade: websocket/13\r\n", ""] {
        assert_eq!(upgrade(lines), bad, "{lines}");
    }
}

#[test]
fn each_rule_of_the_upgrade() {
    let bad = Upgrade::Bad;
    assert_eq!(changed("GET", "POST"), bad(HeadError::Method));
    assert_eq!(changed("GET", "get"), bad(HeadError::Method));
    assert_eq!(changed("HTTP/1.1", "HTTP/1.0"), bad(HeadError::Version));
    for version in ["8", "013", "13, 8", "", "13\r\nSec-WebSocket-Version: 13"] {
        let line = format!("Version: {version}");
        assert_eq!(
            changed("Version: 13", &line),
            bad(HeadError::WebSocketVersion),
            "{version}"
        );
    }
    let no_version = "Sec-WebSocket-Version: 13\r\n";
    assert_eq!(changed(no_version, ""), bad(HeadError::WebSocketVersion));
    for key in [
        "",
        "dGhlIHNhbXBsZSBub25j",
        "dGhlIHNhbXBsZSBub25jZSE=",
        "dGhlIHNhbXBsZSBub25jZSEh",
        "dGhlIHNhbXBsZSBub25jZQ",
        "dGhlIHNhbXBsZSBub25jZ!==",
        "dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ] {
        assert_eq!(changed(KEY, key), bad(HeadError::Key), "{key}");
    }
    assert_eq!(changed("Sec-WebSocket-Key", "X"), bad(HeadError::Key));
    assert_eq!(
        changed("Origin: http://example.com", "Content-Length: 1"),
        bad(HeadError::Body)
    );
    let chunked = "Transfer-Encoding: chunked";
    assert_eq!(
        changed("Origin: http://example.com", chunked),
        bad(HeadError::Body)
    );
    let empty = changed("Origin: http://example.com", "Content-Length: 0");
    assert_eq!(empty, Upgrade::WebSocket { key: KEY });
    // Sixteen bytes, with bits left over in the last character.
    let loose = "dGhlIHNhbXBsZSBub25jZR==";
    assert_eq!(changed(KEY, loose), Upgrade::WebSocket { key: loose });
}

#[test]
fn statuses_and_what_they_ask_for() {
    let mut out = Vec::new();
    write_head_error(&mut out, HeadError::WebSocketVersion);
    let text = String::from_utf8(out).unwrap();
    assert!(
        text.starts_with("HTTP/1.1 426 Upgrade Required\r\n"),
        "{text}"
    );
    assert!(text.contains("\r\nSec-WebSocket-Version: 13\r\n"), "{text}");
    assert!(text.contains("\r\nConnection: close\r\n"), "{text}");
    for (error, status) in [
        (HeadError::Malformed, 400),
        (HeadError::TooLarge, 431),
        (HeadError::Host, 400),
        (HeadError::Version, 505),
        (HeadError::Method, 405),
        (HeadError::Tokens, 400),
        (HeadError::Key, 400),
        (HeadError::Body, 400),
    ] {
        assert_eq!(error.status(), status);
        assert_ne!(phrase(error.status()), "");
    }
}

#[test]
fn plain_requests() {
    let head = whole(
        "GET /?a=/b HTTP/1.1\r\nhost: x:3000\r\naccept: text/html, Application/Nostr+JSON;q=0.9\r\n\
         X-Forwarded-For: 10.0.0.1\r\nX-Forwarded-For: 192.0.2.7, 10.0.0.1\r\n\r\n",
    );
    assert!(head.wants_nostr_json && head.keep_alive);
    assert_eq!((head.upgrade, head.path()), (Upgrade::None, "/"));
    assert_eq!(
        (head.host, head.forwarded_for),
        (Some("x:3000"), vec!["10.0.0.1", "192.0.2.7, 10.0.0.1"])
    );

    let head = whole("OPTIONS / HTTP/1.0\r\n\r\n");
    assert_eq!(
        (head.method, head.host, head.keep_alive),
        ("OPTIONS", None, false)
    );
    let head =
        whole("HEAD http://x.example/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert_eq!(
        (head.path(), head.keep_alive, head.wants_nostr_json),
        ("/health", false, false)
    );
    let head = whole("GET http://x.example HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(head.path(), "/");
    let head = whole("GET /to/http://x HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\n\r\n");
    assert_eq!((head.path(), head.upgrade), ("/to/http://x", Upgrade::None));
    let head = whole("GET / HTTP/1.1\r\nHost: x\r\nAccept: application/nostr+jsonx\r\n\r\n");
    assert!(!head.wants_nostr_json);
}

#[test]
fn what_is_not_http() {
    for text in [
        "GET / HTTP/1.1\nHost: x\n\n",
        "GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\n\n",
        "\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET / HTTP/2.0\r\n\r\n",
        "GET /\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nA: \0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n",
        "\x16\x03\x01\x02\0\x01\0\x01\u{7c}\x03\x03",
    ] {
        assert_eq!(parse(text), Err(HeadError::Malformed), "{text:?}");
    }
    for text in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\u{e9}\r\n\r\n",
    ] {
        assert_eq!(parse(text), Err(HeadError::Host), "{text:?}");
    }
}

#[test]
fn bounds_of_a_head() {
    let head = |bytes: usize| {
        let start = "GET / HTTP/1.1\r\nHost: x\r\nA: ";
        format!("{start}{}\r\n\r\n", "a".repeat(bytes - start.len() - 4))
    };
    assert_eq!(whole(&head(HEAD_BYTES_MAX)).len, HEAD_BYTES_MAX);
    assert_eq!(parse(&head(HEAD_BYTES_MAX + 1)), Err(HeadError::TooLarge));
    let endless = head(2 * HEAD_BYTES_MAX);
    assert_eq!(parse(&endless[..HEAD_BYTES_MAX - 1]), Ok(None));
    assert_eq!(parse(&endless[..HEAD_BYTES_MAX]), Err(HeadError::TooLarge));
    // Frames behind a head do not count.
    assert_eq!(
        whole(&(head(HEAD_BYTES_MAX) + "frames")).len,
        HEAD_BYTES_MAX
    );

    let fields = |count: usize| {
        format!(
            "GET / HTTP/1.1\r\nHost: x\r\n{}\r\n",
            "A: b\r\n".repeat(count - 1)
        )
    };
    assert_eq!(
        parse(&fields(HEAD_FIELDS_MAX + 1)),
        Err(HeadError::TooLarge)
    );
    assert!(whole(&fields(HEAD_FIELDS_MAX)).keep_alive);
}

#[test]
fn answers() {
    let mut out = Vec::new();
    write_response(&mut out, 200, "text/plain", &[("Retry-After", "5")], b"ok");
    let expected = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\
                    Retry-After: 5\r\nConnection: close\r\n\r\n";
    assert_eq!(out, [expected.as_bytes(), b"ok"].concat());
    out.clear();
    write_response_head(&mut out, 200, "text/plain", &[("Retry-After", "5")], 2);
    assert_eq!(out, expected.as_bytes());
    out.clear();
    write_response(&mut out, 204, "", CORS, b"");
    let text = String::from_utf8(out).unwrap();
    assert!(text.starts_with("HTTP/1.1 204 No Content\r\nAccess-Control-Allow-Origin: *\r\n"));
    assert!(!text.contains("Content-"), "{text}");
}

proptest::proptest! {
    /// Any bytes, and any damage to a good head: no panic, and no verdict that more bytes change.
    #[test]
    fn a_verdict_stands_whatever_follows(
        damage in proptest::collection::vec((0..EXAMPLE.len(), proptest::num::u8::ANY), 0..4),
        cut in 0..EXAMPLE.len(),
        noise in proptest::collection::vec(proptest::num::u8::ANY, 0..200),
    ) {
        let mut bytes = EXAMPLE.as_bytes().to_vec();
        for (at, byte) in damage {
            bytes[at] = byte;
        }
        for bytes in [&bytes[..], &noise] {
            let part = parse_head(&bytes[..cut.min(bytes.len())]);
            if part != Ok(None) {
                proptest::prop_assert_eq!(part, parse_head(bytes));
            }
        }
    }
}
