//! `POST /export`: events of a running relay's store to a command.
//!
//! A thread of its own reads slice by slice, each a transaction of its own, and is at most two
//! slices ahead of what the command has taken.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;

use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use tokio::sync::mpsc;

use super::alone::next_slice;
use super::{Active, Routes, unavailable};
use crate::control::bounded::Lease;
use crate::limits::{EXPORT_FILTER_VALUES_MAX, EXPORT_FILTERS_MAX, EXPORT_IDLE, EXPORT_SLICES_MAX};
use crate::metrics::TransferKind;
use crate::nostr::filter::Filter;
use crate::shard::readers;
use crate::store::embedded::{Export, Reader};
use crate::transfer::running::{self, STOPPING, Transfers};
use crate::transfer::wire;

pub(super) async fn export(
    State(routes): State<Routes>,
    ConnectInfo(lease): ConnectInfo<Lease>,
    body: String,
) -> Response {
    let Routes { common, metrics } = routes;
    let filters = match read_filters(&body) {
        Ok(filters) => filters,
        Err(reason) => return (StatusCode::BAD_REQUEST, reason).into_response(),
    };
    let running = match common.transfers.begin_export() {
        Ok(running) => running,
        Err(refusal) => return unavailable(refusal),
    };
    let (sender, slices) = mpsc::channel(EXPORT_SLICES_MAX);
    let exporter = Exporter {
        export: Export::new(filters),
        reader: common.store.reader(),
        transfers: Arc::clone(&common.transfers),
    };
    let thread = thread::Builder::new().name("export".to_owned());
    if let Err(error) = thread.spawn(move || exporter.run(&sender)) {
        return unavailable(format_args!("no thread for it: {error}"));
    }
    lease.grant(EXPORT_IDLE);
    Response::new(Body::from_stream(Slices {
        slices,
        _running: running,
        _active: Active::new(&metrics, TransferKind::Export),
    }))
}

/// One filter a line.
fn read_filters(body: &str) -> Result<Vec<Filter>, String> {
    let lines = body.lines().filter(|line| !line.trim().is_empty());
    let parsed = lines.map(|line| Filter::parse(line, EXPORT_FILTER_VALUES_MAX));
    let filters: Vec<Filter> = parsed
        .take(EXPORT_FILTERS_MAX + 1)
        .collect::<Result<_, _>>()
        .map_err(|reason| reason.to_string())?;
    if filters.len() > EXPORT_FILTERS_MAX {
        return Err(format!(
            "an export has at most {EXPORT_FILTERS_MAX} filters"
        ));
    }
    Ok(filters)
}

/// The export's own thread.
struct Exporter {
    export: Export,
    reader: Reader,
    transfers: Arc<Transfers>,
}

impl Exporter {
    fn run(mut self, slices: &mpsc::Sender<Vec<u8>>) {
        readers::step_back();
        tracing::info!("an export begins");
        let word = loop {
            if self.transfers.is_stopping() {
                break STOPPING.to_owned();
            }
            let mut slice = Vec::new();
            let more = next_slice(&mut self.export, &self.reader, &mut slice);
            // A slice of a filter that wants little may hold nothing.
            if !slice.is_empty() && slices.blocking_send(slice).is_err() {
                break "the command has left".to_owned();
            }
            match more {
                Ok(true) => {}
                Ok(false) => break wire::OK.to_owned(),
                Err(error) => break error.to_string(),
            }
        };
        tracing::info!(word, "an export has ended");
        let mut end = Vec::new();
        wire::write_end(&mut end, &word);
        // One who has left wants no last word.
        let _ = slices.blocking_send(end);
    }
}

/// The response's body.
struct Slices {
    slices: mpsc::Receiver<Vec<u8>>,
    _running: running::Export,
    _active: Active,
}

impl Stream for Slices {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let slice = self.slices.poll_recv(cx);
        slice.map(|slice| slice.map(|slice| Ok(slice.into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_lines_and_bounded() {
        assert_eq!(read_filters("").expect("none").len(), 0);
        let two = "{\"kinds\":[1]}\n\n{}\n";
        assert_eq!(read_filters(two).expect("two").len(), 2);
        assert!(read_filters("{\"kind\":1}").is_err());
        assert!(read_filters(&"{}\n".repeat(EXPORT_FILTERS_MAX)).is_ok());
        assert!(read_filters(&"{}\n".repeat(EXPORT_FILTERS_MAX + 1)).is_err());
    }
}
