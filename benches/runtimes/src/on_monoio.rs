//! monoio on io_uring, with the set-up flags that the relay uses.

use std::io;
use std::rc::Rc;

use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::net::{TcpListener, TcpStream};

use crate::outbox::Subscribers;

/// Serves until the process is killed.
pub fn serve(fanout: bool) -> io::Result<()> {
    let mut ring = io_uring::IoUring::builder();
    ring.setup_coop_taskrun().setup_single_issuer();
    monoio::RuntimeBuilder::<monoio::IoUringDriver>::new()
        .uring_builder(ring)
        .with_entries(4_096)
        .build()?
        .block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            crate::announce(listener.local_addr()?.port());
            let subscribers = Rc::new(Subscribers::default());
            loop {
                let (socket, _) = listener.accept().await?;
                socket.set_nodelay(true)?;
                if fanout {
                    monoio::spawn(member(socket, subscribers.clone()));
                } else {
                    monoio::spawn(echo(socket));
                }
            }
        })
}

async fn echo(mut socket: TcpStream) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(crate::READ_BYTES);
    loop {
        let (count, read) = socket.read(buffer).await;
        if count? == 0 {
            return Ok(());
        }
        let (written, back) = socket.write_all(read).await;
        written?;
        buffer = back;
        buffer.clear();
    }
}

async fn member(mut socket: TcpStream, subscribers: Rc<Subscribers>) -> io::Result<()> {
    let (count, first) = socket.read(vec![0; 1]).await;
    count?;
    if first[0] == b's' {
        let (outbox, mut out) = (subscribers.add(), Vec::new());
        loop {
            outbox.take_all(&mut out).await;
            let (written, back) = socket.write_all(out).await;
            written?;
            out = back;
            out.clear();
        }
    }
    let (mut input, mut buffer) = (Vec::new(), Vec::with_capacity(crate::READ_BYTES * 2));
    loop {
        let (count, read) = socket.read(buffer).await;
        if count? == 0 {
            return Ok(());
        }
        input.extend_from_slice(&read);
        subscribers.publish(&mut input);
        buffer = read;
        buffer.clear();
    }
}
