//! What passes over `hand-over.sock`: one word a record (SOCK_SEQPACKET), as JSON, with the descriptors
//! that it speaks of.
//!
//! [`Word::Hello`] and [`Word::Refused`] are understood by every version there ever is: fields may be
//! added to them, and none taken away. All else belongs to [`PROTOCOL`].

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};

use crate::limits::{HAND_OVER_DESCRIPTORS_MAX, HAND_OVER_WORD_BYTES_MAX};

/// The version of what is said.
pub const PROTOCOL: u32 = 1;

/// One record.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// The new process's first word.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// Its version.
        version: String,
        /// Its process id.
        process: u32,
    },
    /// The old one does not hand over. The last word.
    Refused {
        /// A sentence for the new one's log.
        why: String,
    },
    /// Descriptors, which come with it in this order.
    Gives {
        /// What each of them is.
        parts: Vec<Part>,
        /// Whether more of them follow.
        more: bool,
        /// Whether the service manager keeps the public ones.
        kept: bool,
        /// The old one's process id.
        process: u32,
    },
    /// The new one serves: the old one shall leave.
    Ready,
    /// The old one leaves. The last word.
    Leaves,
}

/// What a descriptor is.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// A socket for clients.
    Public,
    /// The health server's socket.
    Health,
    /// The metrics server's socket.
    Metrics,
    /// The lock of the public address.
    AddressLock,
    /// The lock of the data folder.
    Folder,
    /// `control.sock`.
    Control,
    /// `hand-over.sock`.
    HandOver,
}

/// Sends one word, without waiting.
///
/// # Errors
///
/// `WouldBlock`, or what became of the connection.
pub fn send(socket: impl AsFd, word: &Word, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let text = serde_json::to_vec(word)?;
    assert!(text.len() <= HAND_OVER_WORD_BYTES_MAX, "{word:?}");
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let fits = beside.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "{} descriptors at once", descriptors.len());
    }
    // A wait with a time limit is not taken up again by itself after a signal, or after work that
    // the kernel does for a ring of this thread.
    retry_on_intr(|| {
        rustix::net::sendmsg(
            &socket,
            &[IoSlice::new(&text)],
            &mut beside,
            SendFlags::NOSIGNAL,
        )
    })?;
    Ok(())
}

/// Receives one word and its descriptors, which do not pass to children. `None`: the other side has
/// ended.
///
/// # Errors
///
/// `WouldBlock`, what became of the connection, or `InvalidData` for what is no word.
pub fn receive(socket: impl AsFd) -> io::Result<Option<(Word, Vec<OwnedFd>)>> {
    let mut text = [0; HAND_OVER_WORD_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        rustix::net::recvmsg(
            &socket,
            &mut [IoSliceMut::new(&mut text)],
            &mut beside,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    let mut descriptors = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
    {
        let cut = "a word was cut short: too long, or no descriptors left (LimitNOFILE)";
        return Err(io::Error::new(io::ErrorKind::InvalidData, cut));
    }
    let word = serde_json::from_slice(&text[..received.bytes]);
    // Also a text that ends too early is no end of the conversation.
    let word = word.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some((word, descriptors)))
}

const SPACE: usize = rustix::cmsg_space!(ScmRights(HAND_OVER_DESCRIPTORS_MAX));

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair")
    }

    fn gives(parts: usize) -> Word {
        Word::Gives {
            parts: vec![Part::AddressLock; parts],
            more: true,
            kept: true,
            process: u32::MAX,
        }
    }

    #[test]
    fn words_keep_apart_and_descriptors_come_with_theirs() {
        let (ours, theirs) = pair();
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"the same file").expect("write");
        let all = [file.as_fd(); HAND_OVER_DESCRIPTORS_MAX];
        send(&ours, &gives(all.len()), &all).expect("send");
        send(&ours, &Word::Ready, &[]).expect("send");
        drop(ours);
        let (word, descriptors) = receive(&theirs).expect("receive").expect("a word");
        assert_eq!((word, descriptors.len()), (gives(all.len()), all.len()));
        for descriptor in descriptors {
            let flags = rustix::io::fcntl_getfd(&descriptor).expect("flags");
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
            let mut again = File::from(descriptor);
            again.rewind().expect("seek");
            let mut text = String::new();
            again.read_to_string(&mut text).expect("read");
            assert_eq!(text, "the same file");
        }
        let (word, descriptors) = receive(&theirs).expect("receive").expect("a word");
        assert_eq!((word, descriptors.len()), (Word::Ready, 0));
        assert!(receive(&theirs).expect("the end").is_none());
    }

    #[test]
    fn what_is_no_word_is_refused_and_its_descriptors_closed() {
        let (ours, theirs) = pair();
        for text in [
            &b"{\"ready\""[..],
            b"[]",
            b"\"never\"",
            &[0xff; 100],
            &[b' '; 9_000],
        ] {
            rustix::net::send(&ours, text, SendFlags::empty()).expect("send");
            let error = receive(&theirs).expect_err("no word");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        }
    }

    #[test]
    fn a_word_of_a_later_version_is_understood_as_far_as_it_must_be() {
        let text = br#"{"hello":{"protocol":9,"version":"4","process":7,"hands":[1,2]}}"#;
        let word: Word = serde_json::from_slice(text).expect("a word");
        assert!(matches!(word, Word::Hello { protocol: 9, .. }));
        let text = br#"{"refused":{"why":"so","code":3}}"#;
        let word: Word = serde_json::from_slice(text).expect("a word");
        assert!(matches!(word, Word::Refused { .. }));
    }
}
