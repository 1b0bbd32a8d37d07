//! The protocol beyond NIP-01, sentence by sentence, on the real binary: deletion (NIP-09), proof of
//! work (NIP-13), expiry (NIP-40), counts (NIP-45), vanishing (NIP-62), hints of EOSE (NIP-67),
//! reposts of protected events (NIP-70).

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod deletion;
mod expiry;
mod policy;
mod vanish;

use common::{Client, Launch, Relay};

/// A relay, and a client of it.
async fn start(launch: Launch) -> (Relay, Client) {
    let relay = launch.start();
    let client = Client::connect(relay.address).await;
    (relay, client)
}

/// Publishes what must be refused, and gives the reason.
async fn refused(client: &mut Client, event: &str) -> String {
    let (accepted, reason) = client.publish(event).await;
    assert!(!accepted, "{event}");
    reason
}

/// How many events pass.
async fn count(client: &mut Client, filters: &str) -> u64 {
    client
        .send(format!("[\"COUNT\",\"count\",{filters}]"))
        .await;
    let answer = client.message().await;
    assert_eq!(answer[0], "COUNT", "{answer}");
    answer[2]["count"].as_u64().expect("a number")
}
