//! Ephemeral events on their way to the other relays of a database.
//!
//! They are never stored; a table without a log carries them for seconds, because a notification has
//! no room for them. What cannot be passed on is dropped and counted: its own relay has delivered it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Core;
use crate::limits::{DB_EPHEMERAL_GROUP_MAX, DB_FETCH_BYTES_MAX};
use crate::nostr::event::Event;
use crate::store::StoreError;

const PASS_ON: &str = "SELECT buzz.pass_on($1::bigint, $2::bytea[])";

/// Passes events on, until it is aborted.
pub async fn run(core: Arc<Core>) {
    let mut told = false;
    loop {
        let events = core.passing.take(DB_EPHEMERAL_GROUP_MAX).await;
        let mut rest = &events[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let group = rest.iter().take_while(|event| {
                bytes += event.json().len();
                bytes <= DB_FETCH_BYTES_MAX
            });
            let (group, left) = rest.split_at(group.count().max(1));
            rest = left;
            match pass_on(&core, group).await {
                Ok(()) => {
                    let passed = group.len() as u64;
                    core.passed.fetch_add(passed, Ordering::Relaxed);
                    told = false;
                }
                Err(error) => {
                    let lost = group.len() as u64;
                    core.not_passed.fetch_add(lost, Ordering::Relaxed);
                    if !told {
                        tracing::warn!(%error, "ephemeral events do not reach the other relays");
                        told = true;
                    }
                }
            }
        }
    }
}

async fn pass_on(core: &Core, events: &[Arc<Event>]) -> Result<(), StoreError> {
    let lease = core.writers.get().await?;
    let jsons: Vec<&[u8]> = events.iter().map(|event| event.json().as_bytes()).collect();
    lease.ask(PASS_ON, &[&core.process, &jsons]).await?;
    Ok(())
}
