//! A site of somebody else, for pages that are not the relay's: one text a path.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// Serves these answers (path, content type and further fields, body) for the rest of the test.
pub fn site(answers: Vec<(&'static str, String, String)>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A browser opens connections in advance, and says nothing on some.
            let answers = answers.clone();
            std::thread::spawn(move || answer(stream, &answers));
        }
    });
    address
}

fn answer(stream: TcpStream, answers: &[(&'static str, String, String)]) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    let request = lines.next()?.ok()?;
    while !lines.next()?.ok()?.is_empty() {}
    let path = request.split(' ').nth(1)?;
    let known = answers.iter().find(|(known, _, _)| *known == path);
    let (status, fields, body) = known.map_or(("404 Not Found", "text/plain", ""), |known| {
        ("200 OK", &known.1, &known.2)
    });
    let length = body.len();
    write!(
        &stream,
        "HTTP/1.1 {status}\r\nContent-Type: {fields}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
    .ok()
}
