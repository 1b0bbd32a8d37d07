//! glommio on io_uring.

use std::io;
use std::rc::Rc;

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::net::{TcpListener, TcpStream};
use glommio::{LocalExecutorBuilder, Placement, spawn_local};

use crate::outbox::Subscribers;

/// Serves until the process is killed.
pub fn serve(fanout: bool) -> io::Result<()> {
    let executor = LocalExecutorBuilder::new(Placement::Unbound)
        .make()
        .map_err(plain)?;
    executor.run(async move {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(plain)?;
        crate::announce(listener.local_addr().map_err(plain)?.port());
        let subscribers = Rc::new(Subscribers::default());
        loop {
            let socket = listener.accept().await.map_err(plain)?;
            socket.set_nodelay(true).map_err(plain)?;
            if fanout {
                spawn_local(member(socket, subscribers.clone())).detach();
            } else {
                spawn_local(echo(socket)).detach();
            }
        }
    })
}

async fn echo(mut socket: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; crate::READ_BYTES];
    loop {
        let count = socket.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        socket.write_all(&buffer[..count]).await?;
    }
}

async fn member(mut socket: TcpStream, subscribers: Rc<Subscribers>) -> io::Result<()> {
    let mut first = [0];
    socket.read_exact(&mut first).await?;
    if first[0] == b's' {
        let (outbox, mut out) = (subscribers.add(), Vec::new());
        loop {
            outbox.take_all(&mut out).await;
            socket.write_all(&out).await?;
            out.clear();
        }
    }
    let (mut input, mut buffer) = (Vec::new(), vec![0; crate::READ_BYTES * 2]);
    loop {
        let count = socket.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        input.extend_from_slice(&buffer[..count]);
        subscribers.publish(&mut input);
    }
}

/// glommio's errors cannot be shared between threads, so their text has to do.
fn plain(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}
