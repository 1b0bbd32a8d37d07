//! Upgrades, as clients and operators see them: on PostgreSQL a new process takes the listening sockets
//! of the running one over, and with socket activation the service manager keeps them.

#[path = "../common/mod.rs"]
mod common;

mod activation;
mod load;
mod trouble;
mod upgrades;

use std::net::SocketAddr;

use common::raw::{self, Raw};
use common::{Author, Client, Launch, Relay, now};

/// A process that takes over from the one that `launch` has started.
fn taker(launch: &Launch) -> Launch {
    launch.clone().set("BUZZ_TAKE_OVER", "true")
}

/// That a client is served, to the stored event.
async fn serves(address: SocketAddr, author: u64) {
    let mut client = Client::connect(address).await;
    let text = format!("by {author}");
    let event = Author::new(author).json::<&str>(now(), 1, &[], &text);
    let (accepted, reason) = client.publish(&event).await;
    assert!(accepted, "{reason}");
}

/// The old one's end in order, after a hand-over.
#[track_caller]
fn has_left(mut old: Relay) {
    let exit = old.wait_exit(common::WAIT);
    exit.expect(
        0,
        &["\"requested_by\":\"hand-over\"", "the relay has stopped"],
    );
}

/// A client that was accepted and has sent half of its request.
fn half_a_request(relay: &Relay) -> (Raw, String) {
    let head = raw::upgrade(&[]);
    let (first, rest) = head.split_at(20);
    let mut raw = Raw::connect(relay.address);
    raw.send(first);
    common::until("the relay has accepted it", || {
        let shards = relay.status()["shards"].clone();
        let shards = shards.as_array().expect("shards").clone();
        let sockets = shards.iter().filter_map(|shard| shard["sockets"].as_u64());
        (sockets.sum::<u64>() > 0).then_some(())
    });
    (raw, rest.to_owned())
}
