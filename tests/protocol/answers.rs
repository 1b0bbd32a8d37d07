//! NIP-45 and NIP-67: what an answer says besides events.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::common::{Author, Launch, now};
use crate::start;

/// The value of NIP-45, by its words: hex digits and strings of bits.
fn hll(offset: usize, authors: &[String]) -> String {
    let mut registers = [0u8; 256];
    for author in authors {
        let byte = |at: usize| u8::from_str_radix(&author[2 * at..2 * at + 2], 16).unwrap();
        let bits: String = (offset + 1..32)
            .map(|at| format!("{:08b}", byte(at)))
            .collect();
        let zeros = bits.bytes().take_while(|bit| *bit == b'0').count() as u8;
        let register = &mut registers[usize::from(byte(offset))];
        *register = (*register).max(zeros + 1);
    }
    registers
        .iter()
        .map(|register| format!("{register:02x}"))
        .collect()
}

#[tokio::test]
async fn a_count_of_one_tag_value_brings_a_hyperloglog() {
    let (_relay, mut client) = start(Launch::new()).await;
    let target = Author::new(99).pubkey_hex();
    let authors: Vec<Author> = (0..40).map(Author::new).collect();
    let mut events = Vec::new();
    for author in &authors {
        let address = format!("30023:{target}:x");
        let tags: &[&[&str]] = &[&["p", &target], &["a", &address], &["t", "bee"]];
        events.push(author.json(now(), 3, tags, ""));
    }
    client.publish_all(&events).await;
    let keys: Vec<String> = authors.iter().map(Author::pubkey_hex).collect();
    let digit = |hex: &str| usize::from_str_radix(&hex[32..33], 16).unwrap() + 8;
    let hashed = const_hex::encode(Sha256::digest("bee"));
    for (filter, offset) in [
        (
            format!("{{\"#p\":[\"{target}\"],\"kinds\":[3]}}"),
            digit(&target),
        ),
        (
            format!("{{\"#p\":[\"{target}\"],\"limit\":1}}"),
            digit(&target),
        ),
        (format!("{{\"#a\":[\"30023:{target}:x\"]}}"), digit(&target)),
        ("{\"#t\":[\"bee\"]}".to_owned(), digit(&hashed)),
    ] {
        client.send(format!("[\"COUNT\",\"c\",{filter}]")).await;
        let expected = json!(["COUNT", "c", {"count": 40, "hll": hll(offset, &keys)}]);
        client.expect(expected).await;
    }
    // Where the NIP leaves it open there is a count alone.
    for filters in [
        "{\"kinds\":[3]}",
        "{\"#t\":[\"bee\",\"wax\"]}",
        "{\"#t\":[\"bee\"]},{}",
    ] {
        client.send(format!("[\"COUNT\",\"c\",{filters}]")).await;
        client.expect(json!(["COUNT", "c", {"count": 40}])).await;
    }
}

#[tokio::test]
async fn eose_says_whether_there_is_more() {
    let launch = Launch::new()
        .set("BUZZ_MAX_LIMIT", 6)
        .set("BUZZ_DEFAULT_LIMIT", 3);
    let (_relay, mut client) = start(launch).await;
    let author = Author::new(1);
    let event = |n: u64| author.json(now() - n, 1 + (n % 2) as u16, &[&["t", &n.to_string()]], "");
    let events: Vec<String> = (0..8).map(event).collect();
    client.publish_all(&events).await;
    let (finish, more) = (Some(json!(["finish"])), Some(json!(["more"])));
    let cases: Vec<(&str, usize, Option<Value>)> = vec![
        // The relay's own bounds, not the client's.
        ("{}", 3, more.clone()),
        ("{\"limit\":500}", 6, more.clone()),
        // Exactly as many as there are.
        ("{\"kinds\":[1],\"limit\":4}", 4, finish.clone()),
        ("{\"kinds\":[1],\"limit\":5}", 4, finish.clone()),
        ("{\"kinds\":[1],\"limit\":3}", 3, more.clone()),
        ("{\"#t\":[\"1\",\"2\"]}", 2, finish.clone()),
        ("{\"kinds\":[9]}", 0, finish.clone()),
        ("{\"ids\":[]}", 0, finish.clone()),
        ("{\"limit\":0}", 0, None),
        // What one filter leaves out another may bring.
        (
            "{\"kinds\":[1],\"limit\":3},{\"kinds\":[2]}",
            6,
            more.clone(),
        ),
        ("{\"kinds\":[1],\"limit\":3},{\"#t\":[\"6\"]}", 4, None),
        (
            "{\"kinds\":[1],\"limit\":4},{\"kinds\":[2],\"limit\":4}",
            8,
            finish,
        ),
    ];
    for (filters, given, hint) in cases {
        let (found, said) = client.req_hinted("h", filters).await;
        assert_eq!((found.len(), said), (given, hint), "{filters}");
        client.send("[\"CLOSE\",\"h\"]").await;
    }
}
