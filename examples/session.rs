//! A first session with a relay: publishes a note and reads it back, with a client library that
//! knows nothing of this relay.
//!
//! ```text
//! cargo run --example session [ws://localhost:3000]
//! ```

use std::time::Duration;

use nostr_sdk::prelude::*;

const WAIT: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1);
    let url = url.as_deref().unwrap_or("ws://localhost:3000");
    let keys = Keys::generate();
    let client = Client::new(keys.clone());
    client.add_relay(url).await?;
    client.try_connect(WAIT).await;

    let note = EventBuilder::text_note("Hello from a first session").tag(Tag::hashtag("hello"));
    let sent = client.send_event_builder(note).await?;
    for (relay, reason) in &sent.failed {
        println!("{relay} refused the note: {reason}");
    }
    println!("published {}", sent.val.to_hex());

    let ours = Filter::new().author(keys.public_key()).hashtag("hello");
    for event in client.fetch_events(ours, WAIT).await? {
        println!("fetched   {} {:?}", event.id.to_hex(), event.content);
    }
    client.shutdown().await;
    Ok(())
}
