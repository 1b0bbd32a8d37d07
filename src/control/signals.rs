//! Requests to stop, as a stream: from the kernel, from an admin command, or from a test.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::limits;

/// A request to stop.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StopRequest {
    /// SIGTERM.
    Terminate,
    /// SIGINT.
    Interrupt,
    /// An operator's command.
    Admin,
}

impl StopRequest {
    /// The word that the log shows.
    pub fn as_str(self) -> &'static str {
        match self {
            StopRequest::Terminate => "SIGTERM",
            StopRequest::Interrupt => "SIGINT",
            StopRequest::Admin => "admin",
        }
    }
}

/// The stream of them. What each one means (the first drains, a later one stops at once) is the
/// caller's decision.
#[derive(Debug)]
pub struct Signals {
    sender: Requests,
    received: mpsc::Receiver<StopRequest>,
    hangups: Option<Signal>,
}

/// Puts a request into the stream, from any thread.
#[derive(Clone, Debug)]
pub struct Requests(mpsc::Sender<StopRequest>);

impl Requests {
    /// False when so many requests wait already that this one adds nothing.
    pub fn send(&self, request: StopRequest) -> bool {
        self.0.try_send(request).is_ok()
    }
}

impl Signals {
    /// A stream without the kernel's signals.
    pub fn injected() -> Signals {
        let (sender, received) = mpsc::channel(limits::SIGNALS_WAITING_MAX);
        Signals {
            sender: Requests(sender),
            received,
            hangups: None,
        }
    }

    /// A stream with SIGTERM and SIGINT, which from here on no longer end the process, nor does
    /// SIGHUP. Call it
    /// within the control runtime, before anything that takes time: a signal during the start
    /// waits in the stream.
    ///
    /// # Errors
    ///
    /// When a handler cannot be put in place.
    pub fn install() -> io::Result<Signals> {
        let mut signals = Signals::injected();
        signals.hangups = Some(signal(SignalKind::hangup())?);
        outlive_the_file_size_limit()?;
        let kinds = [
            (SignalKind::terminate(), StopRequest::Terminate),
            (SignalKind::interrupt(), StopRequest::Interrupt),
        ];
        for (kind, request) in kinds {
            let mut from_kernel = signal(kind)?;
            let sender = signals.requests();
            tokio::spawn(async move {
                while from_kernel.recv().await.is_some() {
                    sender.send(request);
                }
            });
        }
        Ok(signals)
    }

    /// The kernel's SIGHUPs, also one that came before this call; several that nobody has looked at
    /// are one. They come once.
    pub fn hangups(&mut self) -> Option<Signal> {
        self.hangups.take()
    }

    /// A way to put requests into this stream.
    pub fn requests(&self) -> Requests {
        self.sender.clone()
    }

    /// The next request; cancel-safe.
    pub async fn next(&mut self) -> StopRequest {
        let next = self.received.recv().await;
        next.expect("the stream holds a sender of its own")
    }

    /// A request that has come already. Lets other tasks of the runtime run first, so that one
    /// that the kernel has just delivered is seen.
    pub async fn pending(&mut self) -> Option<StopRequest> {
        tokio::task::yield_now().await;
        self.received.try_recv().ok()
    }
}

/// Lets a write that meets the file size limit fail with EFBIG, which the store answers as a full
/// disk; the signal's default would end the process. Call it within the control runtime.
///
/// # Errors
///
/// When the handler cannot be put in place.
pub fn outlive_the_file_size_limit() -> io::Result<()> {
    // A handler, once in place, stays, so the stream need not be kept.
    signal(SignalKind::from_raw(libc::SIGXFSZ)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn requests_come_in_order_and_surplus_ones_are_refused() {
        let mut signals = Signals::injected();
        assert_eq!(signals.pending().await, None);
        let requests = signals.requests();
        assert!(requests.send(StopRequest::Admin));
        for _ in 1..limits::SIGNALS_WAITING_MAX {
            assert!(requests.send(StopRequest::Terminate));
        }
        assert!(!requests.send(StopRequest::Interrupt));
        assert_eq!(signals.next().await, StopRequest::Admin);
        assert_eq!(signals.pending().await, Some(StopRequest::Terminate));
    }

    #[tokio::test]
    async fn the_kernel_s_signals_arrive() {
        let mut signals = Signals::install().unwrap();
        for (raised, expected) in [
            (rustix::process::Signal::TERM, StopRequest::Terminate),
            (rustix::process::Signal::INT, StopRequest::Interrupt),
        ] {
            rustix::process::kill_process(rustix::process::getpid(), raised).unwrap();
            let next = tokio::time::timeout(Duration::from_secs(20), signals.next()).await;
            assert_eq!(next.unwrap(), expected);
        }
        // Before anybody asks for them.
        let hangup = rustix::process::Signal::HUP;
        rustix::process::kill_process(rustix::process::getpid(), hangup).unwrap();
        let mut hangups = signals.hangups().expect("the kernel's");
        let next = tokio::time::timeout(Duration::from_secs(20), hangups.recv()).await;
        assert_eq!(next.unwrap(), Some(()));
        assert!(signals.hangups().is_none() && signals.pending().await.is_none());
    }
}
