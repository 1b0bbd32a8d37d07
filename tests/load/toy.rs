//! A relay of a hundred lines, in memory, that can be told to misbehave.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::spawn_local;
use tokio_tungstenite::tungstenite::Message;

/// What the relay does wrong.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Fault {
    #[default]
    None,
    /// Stops once, whole, for this time, at its hundredth event.
    Stall(Duration),
    /// Leaves one event out of each page.
    ShortPages,
    /// Gives a page oldest first.
    OldestFirst,
    /// Refuses every tenth event.
    Refuses,
    /// Does not answer every tenth event.
    Silent,
    /// Delivers live events twice.
    DeliversTwice,
    /// Breaks the connection at its hundredth event.
    Breaks,
}

type Sender = UnboundedSender<String>;

struct Live {
    connection: usize,
    sub: Value,
    filter: Value,
    sender: Sender,
}

struct State {
    fault: Fault,
    events: Vec<Value>,
    live: Vec<Live>,
    received: usize,
}

/// Starts one on a thread of its own, for as long as the process lives.
pub fn start(fault: Fault) -> SocketAddr {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let state = State {
            fault,
            events: Vec::new(),
            live: Vec::new(),
            received: 0,
        };
        tokio::task::LocalSet::new().block_on(&runtime, async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            let state = Rc::new(RefCell::new(state));
            for connection in 0.. {
                let (socket, _) = listener.accept().await.unwrap();
                spawn_local(serve(connection, socket, state.clone()));
            }
        });
    });
    told.recv().unwrap()
}

async fn serve(connection: usize, socket: TcpStream, state: Rc<RefCell<State>>) {
    let Ok(socket) = tokio_tungstenite::accept_async(socket).await else {
        return;
    };
    let (mut sink, mut stream) = socket.split();
    let (sender, mut queue) = unbounded_channel::<String>();
    let challenge = format!("c\"{connection}");
    sender.send(json!(["AUTH", challenge]).to_string()).unwrap();
    spawn_local(async move {
        while let Some(text) = queue.recv().await {
            if text.is_empty() || sink.send(Message::text(text)).await.is_err() {
                return;
            }
        }
    });
    while let Some(Ok(message)) = stream.next().await {
        let Message::Text(text) = message else {
            continue;
        };
        let words: Vec<Value> = serde_json::from_str(&text).unwrap();
        let mut state = state.borrow_mut();
        let alive = match words[0].as_str().unwrap() {
            "EVENT" => state.event(&words[1], &sender),
            "REQ" => {
                state
                    .live
                    .retain(|live| live.connection != connection || live.sub != words[1]);
                state.page(&words[1], &words[2], &sender);
                let (sub, filter) = (words[1].clone(), words[2].clone());
                state.live.push(Live {
                    connection,
                    sub,
                    filter,
                    sender: sender.clone(),
                });
                true
            }
            "COUNT" => {
                let fits = |event: &&Value| words[2..].iter().any(|filter| matches(event, filter));
                let count = match state.fault {
                    Fault::ShortPages => 0,
                    _ => state.events.iter().filter(fits).count(),
                };
                let _ = sender.send(json!(["COUNT", words[1], {"count": count}]).to_string());
                true
            }
            "CLOSE" => {
                state
                    .live
                    .retain(|live| live.connection != connection || live.sub != words[1]);
                true
            }
            "AUTH" => {
                let good = words[1]["tags"][1][1] == challenge.as_str();
                let _ = sender.send(json!(["OK", words[1]["id"], good, "auth"]).to_string());
                true
            }
            other => panic!("{other}"),
        };
        if !alive {
            break;
        }
    }
    state
        .borrow_mut()
        .live
        .retain(|live| live.connection != connection);
    // The writer ends, and the connection with it.
    let _ = sender.send(String::new());
}

impl State {
    fn event(&mut self, event: &Value, sender: &Sender) -> bool {
        self.received += 1;
        let tenth = self.received.is_multiple_of(10);
        match self.fault {
            // The whole relay waits, as one that waits for its disk would.
            Fault::Stall(time) if self.received == 100 => std::thread::sleep(time),
            Fault::Silent if tenth => return true,
            Fault::Breaks if self.received == 100 => return false,
            _ => {}
        }
        let refused = self.fault == Fault::Refuses && tenth;
        let reason = if refused { "blocked: \"no\"" } else { "" };
        let _ = sender.send(json!(["OK", event["id"], !refused, reason]).to_string());
        for live in self.live.iter().filter(|live| matches(event, &live.filter)) {
            let text = json!(["EVENT", live.sub, event]).to_string();
            if self.fault == Fault::DeliversTwice {
                let _ = live.sender.send(text.clone());
            }
            let _ = live.sender.send(text);
        }
        self.events.push(event.clone());
        true
    }

    fn page(&self, sub: &Value, filter: &Value, sender: &Sender) {
        let mut found: Vec<&Value> = self
            .events
            .iter()
            .filter(|event| matches(event, filter))
            .collect();
        found.sort_by_key(|event| std::cmp::Reverse(event["created_at"].as_u64()));
        found.truncate(filter["limit"].as_u64().unwrap_or(500) as usize);
        match self.fault {
            Fault::OldestFirst => found.reverse(),
            Fault::ShortPages => drop(found.pop()),
            _ => {}
        }
        for event in found {
            let _ = sender.send(json!(["EVENT", sub, event]).to_string());
        }
        let _ = sender.send(json!(["EOSE", sub]).to_string());
    }
}

fn matches(event: &Value, filter: &Value) -> bool {
    let has = |key: &str, value: &Value| {
        filter[key].is_null() || filter[key].as_array().unwrap().contains(value)
    };
    let tagged = filter
        .as_object()
        .unwrap()
        .iter()
        .filter(|(key, _)| key.starts_with('#'))
        .all(|(key, values)| {
            let tags = event["tags"].as_array().unwrap();
            tags.iter()
                .any(|tag| tag[0] == key[1..] && values.as_array().unwrap().contains(&tag[1]))
        });
    has("ids", &event["id"])
        && has("authors", &event["pubkey"])
        && has("kinds", &event["kind"])
        && tagged
}
