//! A listener that holds a bounded number of connections, each for a bounded time.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

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
                _permit: permit,
            },
            peer,
        )
    }

    fn local_addr(&self) -> io::Result<L::Addr> {
        self.listener.local_addr()
    }
}

/// A connection whose reads and writes fail once its time is over.
pub struct Brief<S> {
    stream: S,
    end: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl<S> Brief<S> {
    /// Pending while there is time; the task is woken at its end.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        ready!(self.end.as_mut().poll(cx));
        Poll::Ready(io::ErrorKind::TimedOut.into())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Brief<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(error) = self.poll_end(cx) {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Brief<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(error) = self.poll_end(cx) {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
