//! The access lists over the control socket: how they are asked for and edited, and the relay's side.
//!
//! Only the control socket has these routes. The health port takes what changes something from any
//! user of this machine; who is let in is decided by the owner of the data folder.
//!
//! An edit runs to its end on a thread of the blocking pool even when whoever asked leaves: a ban
//! that is committed always ends the connections of its key.

use std::ops::ControlFlow;
use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

use crate::limits::{ACCESS_KEYS_MAX, ACCESS_PAGE_ENTRIES_MAX, ACCESS_REQUEST_BYTES_MAX};
use crate::nostr::key::PublicKey;
use crate::shard::Common;
use crate::store::StoreError;
use crate::store::embedded::{Embedded, List, Reader};

pub mod command;

/// The path of both routes: `GET` for a page of the entries, `POST` for an edit.
const PATH: &str = "/access";

/// Keys to put on a list or to take off it: the body of `POST`.
#[derive(Debug, Deserialize, Eq, PartialEq, Serialize)]
struct Edit {
    list: List,
    on: bool,
    keys: Vec<PublicKey>,
}

/// For each key of an [`Edit`] whether that changed anything: the answer to `POST`.
#[derive(Debug, Deserialize, Eq, PartialEq, Serialize)]
struct Edited {
    changed: Vec<bool>,
}

/// Where a page begins: the query of `GET`.
#[derive(Debug, Deserialize)]
struct Start {
    after: Option<PublicKey>,
}

/// A part of the entries, in the order of the keys: the answer to `GET`.
#[derive(Debug, Deserialize, Eq, PartialEq, Serialize)]
struct Page {
    entries: Vec<Entry>,
    /// Ask again, after the last one.
    more: bool,
}

/// A key, and the lists it is on.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct Entry {
    key: PublicKey,
    banned: bool,
    allowed: bool,
    member: bool,
}

impl Edit {
    fn apply(&self, store: &Embedded) -> Result<Edited, StoreError> {
        let changed = store.edit_access(&self.raw_keys(), self.list, self.on)?;
        Ok(Edited { changed })
    }

    fn raw_keys(&self) -> Vec<[u8; 32]> {
        self.keys.iter().map(|key| key.0).collect()
    }
}

impl Page {
    fn read(reader: &Reader, after: Option<PublicKey>) -> Result<Page, StoreError> {
        let mut page = Page {
            entries: Vec::new(),
            more: false,
        };
        reader.access_list(after.as_ref().map(|key| &key.0), &mut |key, access| {
            if page.entries.len() == ACCESS_PAGE_ENTRIES_MAX {
                page.more = true;
                return ControlFlow::Break(());
            }
            page.entries.push(Entry {
                key: PublicKey(key),
                banned: access.banned,
                allowed: access.allowed,
                member: access.member,
            });
            ControlFlow::Continue(())
        })?;
        Ok(page)
    }
}

/// The routes, for the control socket alone.
pub fn router(common: Arc<Common>) -> Router {
    Router::new()
        .route(PATH, get(list).post(edit))
        .layer(DefaultBodyLimit::max(ACCESS_REQUEST_BYTES_MAX))
        .with_state(common)
}

async fn list(State(common): State<Arc<Common>>, Query(start): Query<Start>) -> Response {
    in_background(move || Page::read(&common.store.reader(), start.after)).await
}

async fn edit(State(common): State<Arc<Common>>, Json(edit): Json<Edit>) -> Response {
    if edit.keys.len() > ACCESS_KEYS_MAX {
        let text = format!("a request has at most {ACCESS_KEYS_MAX} keys");
        return (StatusCode::PAYLOAD_TOO_LARGE, text).into_response();
    }
    in_background(move || {
        let edited = edit.apply(&common.store)?;
        tracing::info!(
            list = edit.list.as_str(),
            on = edit.on,
            keys = edit.keys.len(),
            changed = edited.changed.iter().filter(|changed| **changed).count(),
            "an access list was edited"
        );
        if edit.list == List::Banned && edit.on {
            // Also of keys that were banned already: it may be the second try.
            common.end_banned(edit.raw_keys());
        }
        Ok(edited)
    })
    .await
}

/// Answers with what `work` gives, which may wait for the disk and for other threads.
async fn in_background<T: Serialize + Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Response {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(answer)) => Json(answer).into_response(),
        Ok(Err(error)) => {
            tracing::warn!(%error, "the access lists cannot be read or edited");
            (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response()
        }
        Err(error) => {
            tracing::error!(%error, "an edit of the access lists has failed");
            let text = "the relay has failed at this";
            (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::ACCESS_ENTRY_BYTES_MAX;
    use crate::store::embedded::EmbeddedOptions;

    #[test]
    fn pages_join_without_a_gap_or_a_duplicate() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = Embedded::open(&EmbeddedOptions {
            dir: dir.path().to_owned(),
            map_bytes: 64 << 20,
            readers_max: 4,
        })
        .expect("a store");
        for count in [
            0,
            1,
            ACCESS_PAGE_ENTRIES_MAX,
            2 * ACCESS_PAGE_ENTRIES_MAX + 1,
        ] {
            let keys: Vec<[u8; 32]> = (0..count as u64)
                .map(|n| {
                    let mut key = [0; 32];
                    key[..8].copy_from_slice(&n.to_be_bytes());
                    key
                })
                .collect();
            store
                .edit_access(&keys, List::Allowed, true)
                .expect("an edit");
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let page = Page::read(&store.reader(), after).expect("a page");
                assert!(page.entries.len() <= ACCESS_PAGE_ENTRIES_MAX);
                found.extend(page.entries.iter().map(|entry| entry.key.0));
                if !page.more {
                    break;
                }
                after = page.entries.last().map(|entry| entry.key);
            }
            assert!(found == keys, "{} of {count}", found.len());
        }
    }

    #[test]
    fn an_entry_is_within_its_bound() {
        let entry = Entry {
            key: PublicKey([0xff; 32]),
            banned: false,
            allowed: false,
            member: false,
        };
        let json = serde_json::to_string(&entry).expect("JSON");
        assert!(json.len() < ACCESS_ENTRY_BYTES_MAX, "{json}");
    }
}
