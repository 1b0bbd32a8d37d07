//! The command's side against a relay that does as it is told.

use super::*;
use crate::nostr::testing::Author;
use crate::transfer::window::Verdict;
use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;

const LONG: Duration = Duration::from_secs(30);
const AGREED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

/// A folder in whose socket somebody answers one request with `head`, and then does as he likes.
fn relay(
    head: &'static str,
    then: impl FnOnce(BufReader<UnixStream>, UnixStream) + Send + 'static,
) -> (tempfile::TempDir, JoinHandle<()>) {
    let dir = tempfile::tempdir().expect("a folder");
    let listener = UnixListener::bind(dir.path().join(socket::NAME)).expect("bind");
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accept");
        let mut input = BufReader::new(stream.try_clone().expect("a clone"));
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            input.read_line(&mut line).expect("a head");
        }
        stream.write_all(head.as_bytes()).expect("write");
        then(input, stream);
    });
    (dir, thread)
}

fn chunk(text: &str) -> Vec<u8> {
    let mut chunk = Vec::new();
    wire::write_chunk(&mut chunk, text.as_bytes());
    chunk
}

#[test]
fn events_go_numbered_and_answers_come_until_the_last_word() {
    let (dir, thread) = relay(AGREED, |input, mut stream| {
        let mut body = BufReader::new(Chunked::new(input));
        let mut line = String::new();
        body.read_line(&mut line).expect("an event");
        assert!(line.starts_with("7 {\"id\":"), "{line}");
        line.clear();
        body.read_line(&mut line).expect("a sign of life");
        assert_eq!(line, "\n");
        assert_eq!(body.read_line(&mut line).expect("the end"), 0);
        let answers = chunk("9 duplicate\n7 sto");
        stream.write_all(&answers).expect("write");
        let answers = chunk("red\n8 refused blocked: no\nend the relay is stopping\n");
        stream.write_all(&answers).expect("write");
    });
    let mut intake = RelayIntake::begin(dir.path()).expect("agreed");
    intake.put(7, Author::new(1).note(1, "x")).expect("put");
    intake.tick().expect("sent");
    intake.tick().expect("nothing to send");
    intake.sent = Instant::now().checked_sub(IMPORT_QUIET).expect("uptime");
    intake.tick().expect("a sign of life");
    intake.finish().expect("finished");
    let mut verdicts = Verdicts::new();
    let ended = loop {
        if let Err(ended) = intake.verdicts(&mut verdicts, LONG) {
            break ended;
        }
    };
    assert_eq!(ended.0, "the relay is stopping");
    let refused = Verdict::Refused("blocked: no".to_owned());
    assert_eq!(
        verdicts,
        [
            (9, Verdict::Duplicate),
            (7, Verdict::Accepted),
            (8, refused)
        ]
    );
    thread.join().expect("the relay's side");
}

#[test]
fn a_relay_that_will_not_or_cannot_says_so_at_once() {
    for (head, word) in [
        (
            "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 7\r\n\r\nanother",
            "refused: another",
        ),
        (
            "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            "of a version",
        ),
        ("SSH-2.0-OpenSSH\r\n\r\n", "control.sock"),
        ("", "control.sock"),
    ] {
        for imports in [false, true] {
            let (dir, thread) = relay(head, |_, _| {});
            let begun = match imports {
                true => RelayIntake::begin(dir.path()).map(drop),
                false => RelayOutlet::begin(dir.path(), &[]).map(drop),
            };
            let error = begun.expect_err("refused");
            assert!(error.contains(word), "{error}");
            thread.join().expect("the relay's side");
        }
    }
}

#[test]
fn a_relay_that_takes_no_more_is_asked_for_its_last_word() {
    for (said, word) in [
        ("1 stored\nend full\n", "full"),
        ("1 stored\n", WITHOUT_A_WORD),
        ("1 stored\nend ok\n", "left answers out"),
        ("what?\n", "cannot be understood"),
    ] {
        let (dir, thread) = relay(AGREED, move |_, mut stream| {
            stream.write_all(&chunk(said)).expect("write");
        });
        let mut intake = RelayIntake::begin(dir.path()).expect("agreed");
        thread.join().expect("the relay's side");
        let event = Author::new(1).note(1, "x");
        let ended = loop {
            if let Err(ended) = intake.put(2, event.clone()).and_then(|()| intake.tick()) {
                break ended;
            }
        };
        assert!(ended.0.contains(word), "{ended:?}");
        let mut verdicts = Verdicts::new();
        while intake.verdicts(&mut verdicts, LONG).is_ok() {}
        let answered = usize::from(said.starts_with('1'));
        assert_eq!(verdicts.len(), answered, "what was answered before counts");
    }
}

#[test]
fn an_export_is_complete_only_with_the_last_word() {
    for (said, lines, error) in [
        ("{1}\n{2}\nend ok\n", 2, None),
        (
            "{1}\nend the relay is stopping\n",
            1,
            Some("the relay is stopping"),
        ),
        ("{1}\n{2", 1, Some(WITHOUT_A_WORD)),
        ("{1}\n", 1, Some(WITHOUT_A_WORD)),
    ] {
        let (dir, thread) = relay(AGREED, move |_, mut stream| {
            stream.write_all(&chunk(said)).expect("write");
            stream.write_all(wire::LAST_CHUNK).expect("write");
        });
        let mut outlet = RelayOutlet::begin(dir.path(), &[]).expect("agreed");
        let mut output = Vec::new();
        let next = outlet.next(&mut output);
        assert_eq!(next.as_ref().err().map(String::as_str), error);
        assert!(next.is_err() || next == Ok(false));
        assert_eq!(output.iter().filter(|byte| **byte == b'\n').count(), lines);
        thread.join().expect("the relay's side");
    }
}
