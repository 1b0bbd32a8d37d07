//! `POST /import`: events of a command into the store of a running relay.
//!
//! A task takes the request's body off the connection, a thread makes events of it and hands them to
//! the writer, the writer's answers go back as the response's body. All three hold a bounded amount;
//! when the writer is busy with the events of clients, the thread waits, then the task, then the
//! command.
//!
//! The events go the way of all events from here on: the writer commits them with those of clients,
//! and hands them to every shard, so that live subscriptions miss nothing.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::thread;

use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, State};
use axum::response::Response;
use futures_core::Stream;
use tokio::sync::mpsc;

use super::{Active, Routes, unavailable};
use crate::control::bounded::Lease;
use crate::limits::{
    FRAME_BYTES_MAX, IMPORT_BATCH_BYTES, IMPORT_BATCH_EVENTS, IMPORT_CHUNKS_MAX, IMPORT_IDLE,
    IMPORT_RETRY_PAUSE, IMPORT_ROOM_WAIT, IMPORT_SETTLE_WAIT,
};
use crate::metrics::{ImportOutcome, TransferKind, TransferMetrics};
use crate::nostr::auth::RelayUrl;
use crate::nostr::event::Event;
use crate::shard::{Common, readers};
use crate::store::{Job, Reader, unix_seconds};
use crate::transfer::check;
use crate::transfer::inflow::{Shut, Verdicts};
use crate::transfer::lines::{Line, Lines};
use crate::transfer::policy::Policy;
use crate::transfer::report::Counts;
use crate::transfer::running::{Import, STOPPING, Transfers};
use crate::transfer::window::Verdict;
use crate::transfer::wire::{self, Answer};

/// Why an import ends whose command has gone.
const LEFT: &str = "the command has left before its input ended";

pub(super) async fn import(
    State(routes): State<Routes>,
    ConnectInfo(lease): ConnectInfo<Lease>,
    body: Body,
) -> Response {
    let Routes { common, metrics } = routes;
    let import = match common.transfers.begin_import() {
        Ok(import) => Arc::new(import),
        Err(refusal) => return unavailable(refusal),
    };
    let settings = common.settings();
    // The settings were checked at the start, so this is not met.
    let Ok(relay_url) = RelayUrl::parse(&settings.config.relay_url) else {
        return unavailable("BUZZ_RELAY_URL cannot be read");
    };
    let answers = Answers {
        import: Arc::clone(&import),
        ended: false,
        _active: Active::new(&metrics, TransferKind::Import),
    };
    let (sender, pieces) = mpsc::channel(IMPORT_CHUNKS_MAX);
    let importer = Importer {
        reader: common.store.reader(),
        policy: Policy {
            relay_url,
            vanish_ahead_seconds: settings.config.created_at_future,
        },
        line_bytes_max: settings.config.frame_bytes_max,
        transfers: Arc::clone(&common.transfers),
        common,
        import,
        metrics,
        told: Counts::default(),
        jobs: Vec::new(),
        jobs_bytes: 0,
        over: None,
    };
    tokio::spawn(feed(body, sender, Arc::clone(&importer.transfers)));
    let thread = thread::Builder::new().name("import".to_owned());
    if let Err(error) = thread.spawn(move || importer.run(pieces)) {
        return unavailable(format_args!("no thread for it: {error}"));
    }
    lease.grant(IMPORT_IDLE);
    Response::new(Body::from_stream(answers))
}

/// A part of a request's body.
enum Part {
    Bytes(Bytes),
    /// The body is complete.
    End,
    /// It will never be.
    Cut(&'static str),
}

/// Takes the body off the connection as fast as the thread wants it.
async fn feed(body: Body, parts: mpsc::Sender<Part>, transfers: Arc<Transfers>) {
    let mut body = body.into_data_stream();
    loop {
        let part = tokio::select! {
            bytes = poll_fn(|cx| Pin::new(&mut body).poll_next(cx)) => match bytes {
                Some(Ok(bytes)) => Part::Bytes(bytes),
                None => Part::End,
                Some(Err(_)) => Part::Cut(LEFT),
            },
            () = transfers.stopped() => Part::Cut(STOPPING),
        };
        let is_last = !matches!(part, Part::Bytes(_));
        // A thread that takes no more has ended the import.
        if parts.send(part).await.is_err() || is_last {
            return;
        }
    }
}

/// The import's own thread.
struct Importer {
    common: Arc<Common>,
    transfers: Arc<Transfers>,
    reader: Reader,
    policy: Policy,
    line_bytes_max: usize,
    import: Arc<Import>,
    metrics: Arc<TransferMetrics>,
    /// What the series were told.
    told: Counts,
    jobs: Vec<Job>,
    jobs_bytes: usize,
    /// Why it ends before its input.
    over: Option<&'static str>,
}

impl Importer {
    fn run(mut self, mut parts: mpsc::Receiver<Part>) {
        readers::step_back();
        tracing::info!("an import begins");
        // What the settings would never let in is not worth a number.
        let mut lines = Lines::new(FRAME_BYTES_MAX + wire::NUMBER_BYTES_MAX);
        while self.over.is_none() {
            match parts.blocking_recv() {
                Some(Part::Bytes(bytes)) => lines.push(&bytes, &mut |_, line| self.line(line)),
                Some(Part::End) => {
                    lines.finish(&mut |_, line| self.line(line));
                    break;
                }
                Some(Part::Cut(why)) => self.over = Some(why),
                None => self.over = Some(LEFT),
            }
            self.submit();
            self.count();
        }
        drop(parts);
        self.submit();
        self.settle();
        self.count();
        let word = self.over.unwrap_or(wire::OK);
        tracing::info!(word, counts = %self.told, "an import has ended");
        self.import.inflow.end(word.to_owned());
    }

    fn line(&mut self, line: Line<'_>) {
        if self.over.is_some() {
            return;
        }
        let numbered = match line {
            Line::TooLong => None,
            Line::Text(text) => wire::read_number(text),
        };
        let Some((number, text)) = numbered else {
            self.over = Some("what the command sends cannot be understood");
            return;
        };
        match self.read(text) {
            Ok(event) => self.put(number, event),
            Err(verdict) => self.refuse(number, verdict),
        }
    }

    fn read(&self, text: &[u8]) -> Result<Event, Verdict> {
        let line = match text.len() > self.line_bytes_max {
            true => Line::TooLong,
            false => Line::Text(text),
        };
        let refused = |reason| Verdict::refused(&reason);
        let event = check::read(line).map_err(refused)?;
        self.policy.check(&event, unix_seconds()).map_err(refused)?;
        // A store that cannot be read will not take the event either, and say so.
        let ban = match &self.reader {
            Reader::Embedded(reader) => reader.known(&event).ok().and_then(|s| s.ban(&event)),
            // Its writer knows.
            Reader::Postgres(_) => None,
        };
        match ban {
            Some(reason) => Err(refused(reason)),
            None => Ok(event),
        }
    }

    fn put(&mut self, number: u64, event: Event) {
        let Some(origin) = self.import.origin(number) else {
            self.over = Some("what the command sends has no such numbers");
            return;
        };
        let bytes = event.json().len();
        if !self.admit(bytes) {
            return;
        }
        self.jobs.push(Job {
            event: Arc::new(event),
            origin,
        });
        self.jobs_bytes += bytes;
        if self.jobs.len() >= IMPORT_BATCH_EVENTS || self.jobs_bytes >= IMPORT_BATCH_BYTES {
            self.submit();
        }
    }

    fn refuse(&mut self, number: u64, verdict: Verdict) {
        if self.admit(0) {
            let answer = &mut vec![(number, verdict)];
            self.import.inflow.answer(answer, 0);
        }
    }

    /// Waits for room. False: the import is over.
    fn admit(&mut self, bytes: usize) -> bool {
        loop {
            match self.import.inflow.admit(bytes, std::time::Duration::ZERO) {
                Ok(()) => return true,
                Err(Shut::Stopped(why)) => {
                    self.over = Some(why);
                    return false;
                }
                // What is held back here may be what the room waits for.
                Err(Shut::Full) => self.submit(),
            }
            match self.import.inflow.admit(bytes, IMPORT_ROOM_WAIT) {
                Ok(()) => return true,
                Err(Shut::Full) => {}
                Err(Shut::Stopped(_)) => {}
            }
        }
    }

    /// Hands everything to the writer, and waits while its queue is full.
    fn submit(&mut self) {
        loop {
            self.common.store.submit(&mut self.jobs);
            if self.jobs.is_empty() {
                self.jobs_bytes = 0;
                return;
            }
            if self.import.inflow.stopped().is_some() {
                for job in self.jobs.drain(..) {
                    self.import.inflow.retract(job.event.json().len());
                }
                return;
            }
            thread::sleep(IMPORT_RETRY_PAUSE);
        }
    }

    /// Waits for the answers: of a complete input for all of them, else for a while.
    fn settle(&mut self) {
        let inflow = &self.import.inflow;
        while self.over.is_none() && !inflow.settle(IMPORT_ROOM_WAIT) {
            self.over = inflow.stopped();
        }
        if self.over.is_some() {
            inflow.settle(IMPORT_SETTLE_WAIT);
        }
    }

    fn count(&mut self) {
        let now = self.import.inflow.counts();
        let events = &self.metrics.import_events;
        for (outcome, now, told) in [
            (ImportOutcome::Stored, now.accepted, self.told.accepted),
            (ImportOutcome::Duplicate, now.duplicate, self.told.duplicate),
            (
                ImportOutcome::Superseded,
                now.superseded,
                self.told.superseded,
            ),
            (ImportOutcome::Refused, now.refused, self.told.refused),
            (ImportOutcome::Failed, now.failed, self.told.failed),
        ] {
            events.of(outcome).increment(now - told);
        }
        self.told = now;
    }
}

/// The response's body.
struct Answers {
    import: Arc<Import>,
    ended: bool,
    _active: Active,
}

impl Stream for Answers {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let taken: Option<Verdicts> = ready!(self.import.inflow.poll_take(cx));
        let mut text = Vec::new();
        match taken {
            Some(verdicts) => {
                for (number, verdict) in verdicts {
                    Answer::Verdict(number, verdict).write(&mut text);
                }
            }
            None => {
                self.ended = true;
                let word = self.import.inflow.last_word().unwrap_or_default();
                wire::write_end(&mut text, &word);
            }
        }
        Poll::Ready(Some(Ok(text.into())))
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        // Without effect on one that has ended.
        self.import.inflow.stop(LEFT);
    }
}
