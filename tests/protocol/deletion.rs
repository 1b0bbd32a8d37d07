//! NIP-09, and gift wraps of NIP-59.

use crate::common::{Author, Client, Launch, id_of, now};
use crate::{count, refused, start};

#[tokio::test]
async fn an_author_deletes_by_id_and_nobody_else() {
    let launch = Launch::new();
    let (relay, mut client) = start(launch.clone()).await;
    let (ada, ben) = (Author::new(1), Author::new(2));
    let time = now();
    let note = |n: u64| ada.json::<&str>(time - n, 1, &[], "a note");
    let (gone, stays, never) = (note(1), note(2), note(3));
    client.publish_all([&gone, &stays]).await;
    let foreign = ben.json(time, 5, &[&["e", id_of(&stays)], &["e", id_of(&never)]], "");
    // An id that the author has given away is not taken back by a stranger, stored or not.
    client.publish_all([&foreign]).await;
    assert_eq!(
        client.fetch("{\"kinds\":[1]}").await,
        [gone.clone(), stays.clone()]
    );

    let mut live = Client::connect(relay.address).await;
    assert!(
        live.req("live", "{\"kinds\":[5],\"limit\":0}")
            .await
            .is_empty()
    );
    let unknown = note(4);
    let tags: [&[&str]; 3] = [&["e", id_of(&gone)], &["e", id_of(&unknown)], &["k", "1"]];
    let request = ada.json(time - 9, 5, &tags, "by accident");
    client.publish_all([&request]).await;
    assert_eq!(live.text().await, format!("[\"EVENT\",\"live\",{request}]"));
    for filter in [
        format!("{{\"ids\":[\"{}\"]}}", id_of(&gone)),
        format!(
            "{{\"authors\":[\"{}\"],\"kinds\":[1],\"since\":{}}}",
            ada.pubkey_hex(),
            time - 1
        ),
    ] {
        assert!(client.fetch(&filter).await.is_empty(), "{filter}");
        assert_eq!(count(&mut client, &filter).await, 0, "{filter}");
    }
    // Neither comes back what was deleted, nor comes at all what was deleted before; not after a
    // restart either.
    assert!(refused(&mut client, &gone).await.starts_with("blocked: "));
    assert!(
        refused(&mut client, &unknown)
            .await
            .starts_with("blocked: ")
    );
    client.publish_all([&never]).await;
    drop((client, live, relay));
    let (_relay, mut client) = start(launch).await;
    assert!(refused(&mut client, &gone).await.starts_with("blocked: "));
    // The request itself stays and is served.
    assert_eq!(client.fetch("{\"kinds\":[1]}").await, [stays, never]);
    assert_eq!(client.fetch("{\"kinds\":[5]}").await, [foreign, request]);
}

#[tokio::test]
async fn an_address_is_deleted_up_to_the_time_of_the_request() {
    let (_relay, mut client) = start(Launch::new()).await;
    let (ada, ben) = (Author::new(1), Author::new(2));
    let time = now();
    let page = |by: &Author, age: u64, d: &str| by.json(time - age, 30_023, &[&["d", d]], "");
    let address = |by: &Author, d: &str| format!("30023:{}:{d}", by.pubkey_hex());
    let (at, after) = (page(&ada, 50, "a"), page(&ada, 49, "b"));
    let (other, foreign) = (page(&ada, 60, "c:d"), page(&ben, 60, "a"));
    client.publish_all([&at, &after, &other, &foreign]).await;
    let tags: Vec<[String; 2]> = [
        address(&ada, "a"),
        address(&ada, "b"),
        address(&ben, "a"),
        format!("0:{}:", ada.pubkey_hex()),
    ]
    .map(|address| ["a".to_owned(), address])
    .into();
    let tags: Vec<&[String]> = tags.iter().map(|tag| &tag[..]).collect();
    client
        .publish_all([&ada.json(time - 50, 5, &tags, "")])
        .await;
    // In order of time, then of id.
    let mut left = client.fetch("{\"kinds\":[30023]}").await;
    let mut expected = vec![after, other, foreign];
    left.sort();
    expected.sort();
    assert_eq!(left, expected);
    // Every version up to the request is gone, whichever comes later; a newer one is welcome.
    for old in [
        &page(&ada, 55, "a"),
        &at,
        &ada.json::<&str>(time - 51, 0, &[], "{}"),
    ] {
        assert!(refused(&mut client, old).await.starts_with("blocked: "));
    }
    client
        .publish_all([
            &page(&ada, 48, "a"),
            &ada.json::<&str>(time - 49, 0, &[], "{}"),
        ])
        .await;
}

#[tokio::test]
async fn a_deletion_cannot_be_deleted() {
    let (_relay, mut client) = start(Launch::new()).await;
    let (ada, time) = (Author::new(1), now());
    let note = ada.json::<&str>(time - 9, 1, &[], "");
    let first = ada.json(time - 8, 5, &[&["e", id_of(&note)]], "");
    let late = ada.json(time - 7, 5, &[&["e", id_of(&note)]], "late");
    let tags: [&[&str]; 2] = [&["e", id_of(&first)], &["e", id_of(&late)]];
    let second = ada.json(time - 6, 5, &tags, "");
    client.publish_all([&note, &first, &second, &late]).await;
    assert_eq!(client.fetch("{}").await, [second, late, first]);
    assert!(refused(&mut client, &note).await.starts_with("blocked: "));
}

#[tokio::test]
async fn who_a_gift_wrap_is_for_may_delete_it() {
    let (_relay, mut client) = start(Launch::new()).await;
    let (once, addressee, stranger) = (Author::new(1), Author::new(2), Author::new(3));
    let to = addressee.pubkey_hex();
    let wrap = once.json(now(), 1_059, &[&["p", &to]], "");
    let mention = once.json(now(), 1, &[&["p", &to]], "");
    client.publish_all([&wrap, &mention]).await;
    let tags: [&[&str]; 2] = [&["e", id_of(&wrap)], &["e", id_of(&mention)]];
    client
        .publish_all([&stranger.json(now(), 5, &tags, "")])
        .await;
    assert!(client.publish(&wrap).await.1.starts_with("duplicate: "));
    client
        .publish_all([&addressee.json(now(), 5, &tags, "")])
        .await;
    assert!(refused(&mut client, &wrap).await.starts_with("blocked: "));
    // Any other event stays its author's.
    assert_eq!(client.fetch("{\"kinds\":[1]}").await, [mention]);
}
