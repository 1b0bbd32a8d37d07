//! A transport that sees what the SDK does not tell: answers, failures, and signs of life.
//!
//! Each change of the link's state is one log line, in words that hold neither key nor URL.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_core::Stream;
use launchdarkly_sdk_transport::{
    ByteStream, HttpTransport, Request, ResponseFuture, TransportError,
};

/// What is known of one of the two links to LaunchDarkly.
#[derive(Debug)]
pub(super) struct Watch {
    /// What the link is for, as the log says it.
    what: &'static str,
    inner: Mutex<Inner>,
}

#[derive(Clone, Debug)]
struct Inner {
    link: Link,
    /// The last request, answer or piece of a body.
    sign: Instant,
    /// The SDK ends its stream on such an answer.
    is_final: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Link {
    New,
    Up,
    Answered(u16),
    Unreachable,
    Late,
    Lost,
}

impl Watch {
    pub(super) fn new(what: &'static str) -> Arc<Watch> {
        let inner = Inner {
            link: Link::New,
            sign: Instant::now(),
            is_final: false,
        };
        Arc::new(Watch {
            what,
            inner: Mutex::new(inner),
        })
    }

    /// The watch of the next client: it knows the link's state, so that an unchanged one is not
    /// logged again, and no sign of its own stream.
    pub(super) fn successor(&self) -> Arc<Watch> {
        let inner = Inner {
            link: self.lock().link,
            sign: Instant::now(),
            is_final: false,
        };
        Arc::new(Watch {
            what: self.what,
            inner: Mutex::new(inner),
        })
    }

    /// True when the SDK's stream task has ended, or shows no sign of life for `stall`.
    pub(super) fn has_ended(&self, now: Instant, stall: Duration) -> bool {
        let inner = self.lock();
        inner.is_final || now.saturating_duration_since(inner.sign) >= stall
    }

    fn sign(&self) {
        self.lock().sign = Instant::now();
    }

    fn set(&self, link: Link) {
        let mut inner = self.lock();
        inner.sign = Instant::now();
        inner.is_final = matches!(link, Link::Answered(status) if is_final(status));
        let old = std::mem::replace(&mut inner.link, link);
        drop(inner);
        if old != link {
            self.log(old, link);
        }
    }

    fn log(&self, old: Link, new: Link) {
        let link = self.what;
        match new {
            Link::New => {}
            Link::Up if old == Link::New => tracing::info!(link, "LaunchDarkly is connected"),
            Link::Up => tracing::info!(link, "LaunchDarkly is connected again"),
            Link::Answered(status @ (401 | 403)) => {
                tracing::error!(
                    link,
                    status,
                    "LaunchDarkly rejects the key; last values stay"
                );
            }
            Link::Answered(status) => {
                tracing::warn!(
                    link,
                    status,
                    "LaunchDarkly answers with an error; last values stay"
                );
            }
            Link::Unreachable => {
                tracing::warn!(link, "LaunchDarkly cannot be reached; last values stay");
            }
            Link::Late => tracing::warn!(link, "LaunchDarkly does not answer; last values stay"),
            Link::Lost => tracing::warn!(link, "LaunchDarkly's stream is lost; last values stay"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers after which the SDK does not try again (its rule: a client's fault, with three
/// exceptions).
fn is_final(status: u16) -> bool {
    (400..500).contains(&status) && !matches!(status, 400 | 408 | 429)
}

/// The SDK's transport, watched, and with a time limit for the head of each answer.
#[derive(Clone)]
pub(super) struct Watched<T> {
    inner: T,
    watch: Arc<Watch>,
    answer: Duration,
    is_stream: bool,
}

impl<T> Watched<T> {
    /// For the flag stream, whose answer goes on for ever.
    pub(super) fn stream(inner: T, watch: Arc<Watch>, answer: Duration) -> Watched<T> {
        Watched {
            inner,
            watch,
            answer,
            is_stream: true,
        }
    }

    /// For the delivery of events, whose answers end.
    pub(super) fn events(inner: T, watch: Arc<Watch>, answer: Duration) -> Watched<T> {
        Watched {
            inner,
            watch,
            answer,
            is_stream: false,
        }
    }
}

impl<T: HttpTransport> HttpTransport for Watched<T> {
    fn request(&self, request: Request<Option<Bytes>>) -> ResponseFuture {
        let (watch, answer, is_stream) = (Arc::clone(&self.watch), self.answer, self.is_stream);
        let response = self.inner.request(request);
        watch.sign();
        Box::pin(async move {
            let response = match tokio::time::timeout(answer, response).await {
                Ok(Ok(response)) => response,
                Ok(Err(error)) => {
                    watch.set(if is_timeout(&error) {
                        Link::Late
                    } else {
                        Link::Unreachable
                    });
                    return Err(error);
                }
                Err(_) => {
                    watch.set(Link::Late);
                    return Err(TransportError::new(io::Error::from(
                        io::ErrorKind::TimedOut,
                    )));
                }
            };
            let status = response.status();
            let success = status.is_success();
            watch.set(if success {
                Link::Up
            } else {
                Link::Answered(status.as_u16())
            });
            if !(success && is_stream) {
                return Ok(response);
            }
            Ok(response.map(|body| Box::pin(Body { body, watch }) as ByteStream))
        })
    }
}

fn is_timeout(error: &TransportError) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error
            .downcast_ref::<io::Error>()
            .is_some_and(|e| e.kind() == io::ErrorKind::TimedOut)
        {
            return true;
        }
        cause = error.source();
    }
    false
}

/// A body each piece of which is a sign of life, and whose end is the loss of the stream.
struct Body {
    body: ByteStream,
    watch: Arc<Watch>,
}

impl Stream for Body {
    type Item = Result<Bytes, TransportError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let piece = self.body.as_mut().poll_next(cx);
        match &piece {
            Poll::Pending => {}
            Poll::Ready(Some(Ok(_))) => self.watch.sign(),
            Poll::Ready(Some(Err(_)) | None) => self.watch.set(Link::Lost),
        }
        piece
    }
}
