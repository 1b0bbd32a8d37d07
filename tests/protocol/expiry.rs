//! NIP-40.

use std::time::Duration;

use crate::common::{Author, Client, Launch, Raw, now, raw, until};
use crate::{count, refused, start};

#[tokio::test]
async fn what_has_expired_is_refused() {
    let (_relay, mut client) = start(Launch::new()).await;
    let author = Author::new(1);
    for (kind, expires) in [(1, now()), (1, 0), (20_001, now() - 1), (30_000, 1)] {
        let tags: &[&[&str]] = &[&["expiration", &expires.to_string()]];
        let event = author.json(now() - 9, kind, tags, "");
        assert!(
            refused(&mut client, &event).await.starts_with("invalid: "),
            "{event}"
        );
    }
    // What is no time is no expiry.
    let tags: &[&[&str]] = &[&["expiration", "soon"], &["expiration"]];
    client.publish_all([&author.json(now(), 1, tags, "")]).await;
}

#[tokio::test]
async fn what_expires_is_not_served_from_that_second_on() {
    let (_relay, mut client) = start(Launch::new()).await;
    let author = Author::new(1);
    let expires = now() + 3;
    let tags: &[&[&str]] = &[&["expiration", &expires.to_string()], &["t", "x"]];
    let event = author.json(now(), 1, tags, "");
    let stays = author.json(now() - 1, 1, &[&["t", "x"]], "");
    client.publish_all([&event, &stays]).await;
    let filters = [
        "{}".to_owned(),
        "{\"kinds\":[1]}".to_owned(),
        "{\"#t\":[\"x\"]}".to_owned(),
        format!("{{\"authors\":[\"{}\"]}}", author.pubkey_hex()),
        format!("{{\"ids\":[\"{}\",\"{}\"]}}", &event[7..71], &stays[7..71]),
    ];
    for filter in &filters {
        let found = client.fetch(filter).await;
        let counted = count(&mut client, filter).await;
        if now() < expires {
            assert_eq!((found.len(), counted), (2, 2), "{filter}");
        }
    }
    while now() < expires {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for filter in &filters {
        assert_eq!(
            client.fetch(filter).await,
            std::slice::from_ref(&stays),
            "{filter}"
        );
        assert_eq!(count(&mut client, filter).await, 1, "{filter}");
    }
    assert!(refused(&mut client, &event).await.starts_with("invalid: "));
}

#[tokio::test]
async fn what_has_expired_is_swept() {
    let (relay, mut client) = start(Launch::new()).await;
    let author = Author::new(1);
    // An older version is taken only once the newest is no longer there.
    let tag = (now() + 1).to_string();
    let short = author.json(now(), 30_000, &[&["expiration", &tag]], "short");
    let older = author.json::<&str>(now() - 50, 30_000, &[], "older");
    client.publish_all([&short]).await;
    let address = relay.address;
    until("the sweep makes room", || {
        let mut raw = Raw::upgraded(address);
        raw.send(raw::text(&format!("[\"EVENT\",{older}]")));
        (raw.message()[2] == true).then_some(())
    });
    assert_eq!(client.fetch("{\"kinds\":[30000]}").await, [older]);
}

#[tokio::test]
async fn what_will_expire_is_live_until_then() {
    let (relay, mut client) = start(Launch::new()).await;
    let author = Author::new(1);
    let mut live = Client::connect(relay.address).await;
    assert!(live.req("live", "{\"limit\":0}").await.is_empty());
    let soon = (now() + 60).to_string();
    for kind in [1, 20_001] {
        let event = author.json(now(), kind, &[&["expiration", &soon]], "");
        client.publish_all([&event]).await;
        assert_eq!(live.text().await, format!("[\"EVENT\",\"live\",{event}]"));
    }
}
