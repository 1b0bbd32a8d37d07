//! A listener that holds a bounded number of connections, each for a bounded time.
//!
//! A connection's time is its whole life, unless whoever serves it grants it a [`Lease`]: then it may
//! live on as long as something passes over it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// Wraps a listener.
pub struct Bounded<L> {
    listener: L,
    room: Arc<Semaphore>,
    life: Duration,
}

impl<L: Listener> Bounded<L> {
    /// Holds at most `connections` at once, each for at most `life`.
    pub fn new(listener: L, connections: usize, life: Duration) -> Bounded<L> {
        Bounded {
            listener,
            room: Arc::new(Semaphore::new(connections)),
            life,
        }
    }
}

impl<L: Listener> Listener for Bounded<L>
where
    L::Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Io = Brief<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Brief<L::Io>, L::Addr) {
        let room = Arc::clone(&self.room).acquire_owned().await;
        let permit = room.expect("this semaphore is never closed");
        // Accept errors (no descriptors left) pause and go on, inside this call.
        let (stream, peer) = self.listener.accept().await;
        let end = Box::pin(tokio::time::sleep(self.life));
        (
            Brief {
                stream,
                end,
                lease: Lease::default(),
                is_leased: false,
                _permit: permit,
            },
            peer,
        )
    }

    fn local_addr(&self) -> io::Result<L::Addr> {
        self.listener.local_addr()
    }
}

/// Lets one connection outlive its time. Clones are for the same connection.
#[derive(Clone, Debug, Default)]
pub struct Lease(Arc<AtomicU64>);

impl Lease {
    /// From now on the connection ends when nothing has passed over it for this long, while somebody
    /// waits for it to.
    pub fn grant(&self, idle: Duration) {
        let millis = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        self.0.store(millis.max(1), Ordering::Relaxed);
    }

    fn idle(&self) -> Option<Duration> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            millis => Some(Duration::from_millis(millis)),
        }
    }
}

/// A connection whose reads and writes fail once its time is over.
pub struct Brief<S> {
    stream: S,
    end: Pin<Box<Sleep>>,
    lease: Lease,
    is_leased: bool,
    _permit: OwnedSemaphorePermit,
}

impl<S> Brief<S> {
    /// To grant it more time.
    pub fn lease(&self) -> Lease {
        self.lease.clone()
    }

    /// What a read or a write comes to: with a lease its own end is put off by whatever passed.
    fn within<T>(
        &mut self,
        cx: &mut Context<'_>,
        act: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>>
    where
        S: Unpin,
    {
        let over = || Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        let Some(idle) = self.lease.idle() else {
            if self.end.as_mut().poll(cx).is_ready() {
                return over();
            }
            return act(Pin::new(&mut self.stream), cx);
        };
        // First the stream: time in which nobody asked for it is not its peer's.
        let acted = act(Pin::new(&mut self.stream), cx);
        let until = Instant::now() + idle;
        if acted.is_ready() || !std::mem::replace(&mut self.is_leased, true) {
            self.end.as_mut().reset(until);
        }
        match acted {
            Poll::Pending if self.end.as_mut().poll(cx).is_ready() => over(),
            acted => acted,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Brief<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.within(cx, |stream, cx| stream.poll_read(cx, buffer))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Brief<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.within(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{UnixListener, UnixStream};
    use tokio::time::timeout;

    const LIFE: Duration = Duration::from_millis(200);
    const IDLE: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(30);

    async fn connection() -> (Brief<UnixStream>, UnixStream) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).expect("bind");
        let mut listener = Bounded::new(listener, 1, LIFE);
        let (connected, accepted) = tokio::join!(UnixStream::connect(&path), listener.accept());
        (accepted.0, connected.expect("connect"))
    }

    #[tokio::test]
    async fn a_connection_ends_with_its_time_however_busy_it_is() {
        let began = Instant::now();
        let (mut ours, mut theirs) = connection().await;
        let error = loop {
            assert!(began.elapsed() < LONG, "it goes on");
            tokio::time::sleep(IDLE / 5).await;
            theirs.write_all(b"x").await.expect("write");
            if let Err(error) = ours.read_u8().await {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= LIFE);
    }

    #[tokio::test]
    async fn with_a_lease_it_lives_on_while_something_passes() {
        let began = Instant::now();
        let (mut ours, mut theirs) = connection().await;
        ours.lease().grant(IDLE);
        while began.elapsed() < 2 * LIFE {
            tokio::time::sleep(IDLE / 5).await;
            theirs.write_all(b"x").await.expect("write");
            assert_eq!(ours.read_u8().await.expect("read"), b'x');
        }
        // It is not its fault that nobody reads.
        theirs.write_all(b"x").await.expect("write");
        tokio::time::sleep(2 * IDLE).await;
        assert_eq!(ours.read_u8().await.expect("read"), b'x');
        let silent = Instant::now();
        let read = timeout(LONG, ours.read_u8()).await.expect("an end");
        assert_eq!(read.expect_err("silence").kind(), io::ErrorKind::TimedOut);
        assert!(silent.elapsed() >= IDLE);
    }

    #[tokio::test]
    async fn a_peer_that_takes_nothing_ends_a_lease() {
        let (mut ours, _theirs) = connection().await;
        ours.lease().grant(IDLE);
        let began = Instant::now();
        let error = loop {
            let write = ours.write_all(&[0; 4096]);
            if let Err(error) = timeout(LONG, write).await.expect("an end") {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= IDLE);
    }
}
