//! tokio on epoll, current_thread.

use std::io;
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{LocalSet, spawn_local};

use crate::outbox::Subscribers;

/// Serves until the process is killed.
pub fn serve(fanout: bool) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    LocalSet::new().block_on(&runtime, async move {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        crate::announce(listener.local_addr()?.port());
        let subscribers = Rc::new(Subscribers::default());
        loop {
            let (socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            if fanout {
                spawn_local(member(socket, subscribers.clone()));
            } else {
                spawn_local(echo(socket));
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
