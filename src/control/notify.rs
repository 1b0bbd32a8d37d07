//! Words to the service manager (sd_notify): what the process is doing, on the datagram socket that
//! `NOTIFY_SOCKET` names. Without one, nothing is said.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;

/// The way to the service manager, if there is one. Clones lead to the same one.
#[derive(Clone, Debug, Default)]
pub struct Manager {
    socket: Option<Arc<(UnixDatagram, SocketAddr)>>,
}

impl Manager {
    /// Finds it by the environment. One that cannot be reached is logged and then left alone: a
    /// relay does not fail because nobody listens to its progress.
    pub fn from_environment() -> Manager {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Manager::default();
        };
        match open(&name) {
            Ok(socket) => Manager {
                socket: Some(Arc::new(socket)),
            },
            Err(error) => {
                tracing::warn!(%error, "NOTIFY_SOCKET cannot be used");
                Manager::default()
            }
        }
    }

    /// The relay serves.
    pub fn ready(&self, status: &str) {
        self.say(&format!("READY=1\nSTATUS={status}"));
    }

    /// The settings are read again; [`ready`](Self::ready) follows. The time tells the manager's
    /// `notify-reload` that this is an answer to its signal.
    pub fn reloading(&self, status: &str) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        self.say(&format!(
            "RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS={status}"
        ));
    }

    /// The relay was told to stop.
    pub fn stopping(&self, status: &str) {
        self.say(&format!("STOPPING=1\nSTATUS={status}"));
    }

    /// One line for whoever asks how it is going.
    pub fn status(&self, status: &str) {
        self.say(&format!("STATUS={status}"));
    }

    /// The relay lives (the watchdog's ping).
    pub fn alive(&self) {
        self.say("WATCHDOG=1");
    }

    fn say(&self, words: &str) {
        if let Some((socket, address)) = self.socket.as_deref() {
            // A manager whose queue is full misses a word; the relay does not wait for it.
            let _ = socket.send_to_addr(words.as_bytes(), address);
        }
    }
}

fn open(name: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes() {
        // A name of the abstract namespace is written with an @ for its zero byte.
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        path => SocketAddr::from_pathname(OsString::from(OsStr::from_bytes(path)))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).expect("a word");
        String::from_utf8(buffer[..length].to_vec()).expect("UTF-8")
    }

    #[test]
    fn words_arrive_by_path_and_by_abstract_name() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).expect("bind");
        let name = format!("buzz-uring-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let by_name = UnixDatagram::bind_addr(&address).expect("bind");
        for (manager, name) in [
            (by_path, path.into_os_string()),
            (by_name, format!("@{name}").into()),
        ] {
            let to = Manager {
                socket: Some(Arc::new(open(&name).expect("open"))),
            };
            to.ready("serving");
            to.reloading("reading");
            to.stopping("draining");
            to.status("half way");
            to.clone().alive();
            assert_eq!(heard(&manager), "READY=1\nSTATUS=serving");
            let words = heard(&manager);
            let micros = words
                .strip_prefix("RELOADING=1\nMONOTONIC_USEC=")
                .and_then(|rest| rest.strip_suffix("\nSTATUS=reading"));
            assert!(micros.is_some_and(|micros| micros.parse::<u64>().is_ok_and(|at| at > 0)));
            assert_eq!(heard(&manager), "STOPPING=1\nSTATUS=draining");
            assert_eq!(heard(&manager), "STATUS=half way");
            assert_eq!(heard(&manager), "WATCHDOG=1");
        }
    }

    #[test]
    fn nobody_to_tell_is_fine() {
        Manager::default().ready("serving");
        assert!(open(OsStr::new(&"x".repeat(200))).is_err());
    }
}
