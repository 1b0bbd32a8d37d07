//! The same two servers on three runtimes, each on one core, measured by the same client on another.
//!
//! `cargo run --release` in this folder prints the table. Compare only within one table: the rounds
//! are interleaved, so a noisy minute hits every runtime alike.
//!
//! *Echo*: what comes is sent back; connections with one message in flight each. *Fan-out*: a
//! publisher's messages of 300 bytes go to every subscriber, by a writer task a connection that
//! takes everything queued in one write, as a relay's does.

mod client;
mod on_glommio;
mod on_monoio;
mod on_tokio;
mod outbox;

use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};

const RUNTIMES: [&str; 3] = ["monoio", "tokio", "glommio"];
/// Bytes of one message of the fan-out.
pub const FANOUT_BYTES: usize = 300;
/// Bytes of one read.
pub const READ_BYTES: usize = 4_096;

/// What is measured.
#[derive(Clone, Copy)]
enum Case {
    Echo { connections: usize, bytes: usize },
    Fanout { subscribers: usize, burst: usize },
}

const CASES: [Case; 8] = [
    Case::Echo {
        connections: 1,
        bytes: 64,
    },
    Case::Echo {
        connections: 50,
        bytes: 64,
    },
    Case::Echo {
        connections: 1_000,
        bytes: 64,
    },
    Case::Echo {
        connections: 50,
        bytes: 1_024,
    },
    Case::Fanout {
        subscribers: 100,
        burst: 1,
    },
    Case::Fanout {
        subscribers: 100,
        burst: 16,
    },
    Case::Fanout {
        subscribers: 1_000,
        burst: 1,
    },
    Case::Fanout {
        subscribers: 1_000,
        burst: 16,
    },
];

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", runtime, work] => serve(runtime, work == "fanout"),
        [] => table(3, 2.0),
        [rounds, seconds] => match (rounds.parse(), seconds.parse()) {
            (Ok(rounds), Ok(seconds)) => table(rounds, seconds),
            _ => usage(),
        },
        _ => usage(),
    }
}

fn usage() -> io::Result<()> {
    Err(io::Error::other("usage: runtimes [ROUNDS SECONDS]"))
}

fn serve(runtime: &str, fanout: bool) -> io::Result<()> {
    match runtime {
        "monoio" => on_monoio::serve(fanout),
        "tokio" => on_tokio::serve(fanout),
        _ => on_glommio::serve(fanout),
    }
}

/// Tells the parent where to connect.
pub fn announce(port: u16) {
    println!("{port}");
}

fn table(rounds: usize, seconds: f64) -> io::Result<()> {
    let cores = client::cores();
    let (server_core, client_core) = match cores[..] {
        [first, second, ..] => (first, second),
        _ => {
            return Err(io::Error::other(
                "two cores are needed: one for the server, one for the client",
            ));
        }
    };
    client::pin(client_core);
    client::raise_descriptors();
    println!(
        "CPU of the server in µs a message (or delivery), median (lowest) of {rounds} rounds; messages a second\n"
    );
    println!("| case | {} |\n|---|---|---|---|", RUNTIMES.join(" | "));
    for case in CASES {
        let mut found = vec![Vec::new(); RUNTIMES.len()];
        for _ in 0..rounds {
            for (runtime, found) in RUNTIMES.iter().zip(&mut found) {
                let mut server = Server::start(runtime, case, server_core, client_core)?;
                found.push(match case {
                    Case::Echo { connections, bytes } => {
                        client::echo(server.port, server.child.id(), connections, bytes, seconds)?
                    }
                    Case::Fanout { subscribers, burst } => {
                        client::fanout(server.port, server.child.id(), subscribers, burst, seconds)?
                    }
                });
                server.stop();
            }
        }
        let cells: Vec<String> = found.into_iter().map(cell).collect();
        println!("| {} | {} |", case.name(), cells.join(" | "));
    }
    Ok(())
}

fn cell(mut rounds: Vec<client::Figures>) -> String {
    rounds.sort_by(|a, b| a.cpu_micros.total_cmp(&b.cpu_micros));
    let middle = rounds[rounds.len() / 2];
    format!(
        "{:.2} ({:.2}) {:.0}k",
        middle.cpu_micros,
        rounds[0].cpu_micros,
        middle.per_second / 1e3
    )
}

impl Case {
    fn name(self) -> String {
        match self {
            Case::Echo { connections, bytes } => format!("echo {connections} x {bytes} B"),
            Case::Fanout { subscribers, burst } => {
                format!("fan-out to {subscribers}, bursts of {burst}")
            }
        }
    }
}

struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// A server process on its core: it inherits the affinity that this thread has for the moment.
    fn start(runtime: &str, case: Case, core: usize, back_to: usize) -> io::Result<Server> {
        let work = if matches!(case, Case::Echo { .. }) {
            "echo"
        } else {
            "fanout"
        };
        client::pin(core);
        let child = Command::new(std::env::current_exe()?)
            .args(["serve", runtime, work])
            .stdout(Stdio::piped())
            .spawn();
        client::pin(back_to);
        let mut child = child?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        let port = line
            .trim()
            .parse()
            .map_err(|_| io::Error::other(format!("{runtime} did not start")))?;
        Ok(Server { child, port })
    }

    fn stop(&mut self) {
        // It may be gone already; nothing is lost either way.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}
