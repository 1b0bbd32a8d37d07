//! A Nostr client on a WebSocket that nobody here wrote.

use std::net::SocketAddr;

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use super::{WAIT, id_of};

/// A connection to the relay.
pub struct Client<S = TcpStream> {
    socket: WebSocketStream<S>,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Client {
        Client::try_connect(address).await.expect("a WebSocket")
    }

    pub async fn try_connect(address: SocketAddr) -> Result<Client, Error> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (socket, _) = client_async(format!("ws://{address}/"), stream).await?;
        Ok(Client { socket })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    /// A client on a WebSocket that is open already.
    pub fn over(socket: WebSocketStream<S>) -> Client<S> {
        Client { socket }
    }

    pub async fn send(&mut self, text: impl Into<String>) {
        self.try_send(text)
            .await
            .expect("the relay takes a message");
    }

    pub async fn try_send(&mut self, text: impl Into<String>) -> Result<(), Error> {
        self.socket.send(Message::text(text.into())).await
    }

    /// Puts a message into the queue of those that the next send sends.
    pub async fn feed(&mut self, text: impl Into<String>) -> Result<(), Error> {
        self.socket.feed(Message::text(text.into())).await
    }

    pub async fn flush(&mut self) -> Result<(), Error> {
        self.socket.flush().await
    }

    /// The next text, a challenge apart. `Err`: the connection's end.
    pub async fn try_text(&mut self) -> Result<String, Error> {
        loop {
            match self.socket.next().await {
                Some(Ok(Message::Text(text))) if !text.starts_with("[\"AUTH\"") => {
                    return Ok(text.to_string());
                }
                Some(Ok(Message::Close(_))) | None => return Err(Error::ConnectionClosed),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
            }
        }
    }

    /// The next text.
    pub async fn text(&mut self) -> String {
        let text = timeout(WAIT, self.try_text()).await;
        text.expect("a message in time")
            .expect("a message, not the end")
    }

    /// The next message.
    pub async fn message(&mut self) -> Value {
        serde_json::from_str(&self.text().await).expect("JSON")
    }

    /// The next message, which is this one.
    pub async fn expect(&mut self, expected: Value) {
        assert_eq!(self.message().await, expected);
    }

    /// Sends an event and waits for what the relay says of it.
    pub async fn publish(&mut self, event: &str) -> (bool, String) {
        self.send(format!("[\"EVENT\",{event}]")).await;
        let answer = self.message().await;
        assert_eq!(answer[0], "OK", "{answer}");
        assert_eq!(answer[1], id_of(event), "{answer}");
        assert_eq!(answer.as_array().map(Vec::len), Some(4), "{answer}");
        let accepted = answer[2].as_bool().expect("true or false");
        (accepted, answer[3].as_str().expect("a text").to_owned())
    }

    /// Publishes events that must all be accepted without a word.
    pub async fn publish_all<'e>(&mut self, events: impl IntoIterator<Item = &'e String>) {
        for event in events {
            assert_eq!(self.publish(event).await, (true, String::new()), "{event}");
        }
    }

    /// Opens a subscription and reads its stored events, up to EOSE. `filters` is what stands in
    /// the message: one or several, with commas between.
    pub async fn req(&mut self, sub: &str, filters: &str) -> Vec<String> {
        self.req_hinted(sub, filters).await.0
    }

    /// As [`Client::req`], with what EOSE says besides (NIP-67).
    pub async fn req_hinted(&mut self, sub: &str, filters: &str) -> (Vec<String>, Option<Value>) {
        let name = json!(sub).to_string();
        self.send(format!("[\"REQ\",{name},{filters}]")).await;
        let prefix = format!("[\"EVENT\",{name},");
        let mut events = Vec::new();
        loop {
            let text = self.text().await;
            match text.strip_prefix(&prefix) {
                Some(event) => {
                    let event = event.strip_suffix(']').expect("a whole message");
                    events.push(event.to_owned());
                }
                None => {
                    let message: Value = serde_json::from_str(&text).expect("JSON");
                    assert_eq!((&message[0], &message[1]), (&json!("EOSE"), &json!(sub)));
                    return (events, message.get(2).cloned());
                }
            }
        }
    }

    /// As [`Client::req`], and closes the subscription.
    pub async fn fetch(&mut self, filters: &str) -> Vec<String> {
        let events = self.req("fetch", filters).await;
        self.send("[\"CLOSE\",\"fetch\"]").await;
        events
    }

    /// The reason for which a subscription is closed, which is the next message.
    pub async fn closed(&mut self, sub: &str) -> String {
        let message = self.message().await;
        assert_eq!(
            (&message[0], &message[1]),
            (&json!("CLOSED"), &json!(sub)),
            "{message}"
        );
        message[2].as_str().expect("a text").to_owned()
    }

    /// Proves that nothing came for this connection until now: an answer to a question asked last
    /// is the next message.
    pub async fn expect_silence(&mut self) {
        assert_eq!(self.req("silence", "{\"ids\":[]}").await, [""; 0]);
        self.send("[\"CLOSE\",\"silence\"]").await;
    }

    /// Reads up to the relay's close frame, and answers it.
    pub async fn close_frame(&mut self) -> Option<CloseFrame> {
        let frame = timeout(WAIT, async {
            loop {
                match self.socket.next().await {
                    Some(Ok(Message::Close(frame))) => return frame,
                    Some(Ok(_)) => {}
                    Some(Err(error)) => panic!("no close frame: {error}"),
                    None => panic!("the end without a close frame"),
                }
            }
        });
        let frame = frame.await.expect("a close frame in time");
        // The answer was queued by the read; the next read sends it and sees the end.
        let end = timeout(WAIT, self.socket.next()).await;
        assert!(matches!(end, Ok(None)), "after the close frame: {end:?}");
        frame
    }
}
