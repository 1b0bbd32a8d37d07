//! The sockets in the data folder, mode 0600.
//!
//! `control.sock` is HTTP over a Unix socket: what the command line uses to speak to a running relay.
//! `hand-over.sock` keeps records apart: see [`super::hand_over`]. Whoever can open them owns the data
//! folder anyway. The folder's lock is held when they are bound, so a file of that name is the
//! leftover of a process that has ended. Sockets that were taken over keep their files: what is bound
//! to a file is the socket, not the process.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Router;
use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::task::JoinHandle;

use super::bounded::{Bounded, Brief, Lease};
use crate::limits::{ADMIN_CONNECTIONS_MAX, CONTROL_ANSWER_WAIT, CONTROL_CONNECTION_MS_MAX};

/// The control socket's name in the data folder.
pub const NAME: &str = "control.sock";
/// The name of the socket by which a new process takes over.
pub const HAND_OVER_NAME: &str = "hand-over.sock";

/// The socket, bound and not yet answering. Its file goes when the server is dropped.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    file: SocketFile,
}

/// A socket's file, which goes with it.
#[derive(Debug)]
pub struct SocketFile(Option<PathBuf>);

impl SocketFile {
    /// Leaves it: the socket is another process's now.
    pub fn leave(mut self) {
        self.0 = None;
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Gone already is as good.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The running server; it stops, and its file goes, when it is dropped.
#[derive(Debug)]
pub struct Running {
    task: JoinHandle<()>,
    file: Option<SocketFile>,
}

impl Running {
    /// Stops, and leaves the file: the socket is another process's now.
    pub fn leave(mut self) {
        self.file.take().into_iter().for_each(SocketFile::leave);
    }
}

impl Socket {
    /// Binds the control socket in `dir`, whose lock the caller holds.
    ///
    /// # Errors
    ///
    /// What the kernel says, with the path.
    pub fn bind(dir: &Path) -> io::Result<Socket> {
        Socket::bind_as(dir, NAME, SocketType::STREAM)
    }

    /// Binds the socket of hand-overs, as [`Socket::bind`] does the other one.
    ///
    /// # Errors
    ///
    /// What the kernel says, with the path.
    pub fn bind_records(dir: &Path) -> io::Result<Socket> {
        Socket::bind_as(dir, HAND_OVER_NAME, SocketType::SEQPACKET)
    }

    /// Takes over one that is bound in `dir` already.
    ///
    /// # Errors
    ///
    /// If the kernel does not let it be used without waiting.
    pub fn adopt(dir: &Path, name: &str, listener: UnixListener) -> io::Result<Socket> {
        listener.set_nonblocking(true)?;
        Ok(Socket {
            listener,
            file: SocketFile(Some(dir.join(name))),
        })
    }

    fn bind_as(dir: &Path, name: &str, kind: SocketType) -> io::Result<Socket> {
        let path = dir.join(name);
        let bind = || {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = bind_private(dir, name, kind)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        match bind() {
            Ok(listener) => Ok(Socket {
                listener,
                file: SocketFile(Some(path)),
            }),
            Err(error) => {
                let text = format!("{}: {error}", path.display());
                Err(io::Error::new(error.kind(), text))
            }
        }
    }

    /// A handle of its own.
    ///
    /// # Errors
    ///
    /// When there is no descriptor left.
    pub fn handle(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }

    /// The socket, and its file.
    pub fn into_parts(self) -> (UnixListener, SocketFile) {
        (self.listener, self.file)
    }

    /// Starts to answer, on the runtime this is called within.
    ///
    /// # Errors
    ///
    /// When the runtime cannot take the listener.
    pub fn serve(self, router: Router) -> io::Result<Running> {
        let listener = tokio::net::UnixListener::from_std(self.listener)?;
        let life = Duration::from_millis(CONTROL_CONNECTION_MS_MAX);
        let listener = Bounded::new(listener, ADMIN_CONNECTIONS_MAX, life);
        let task = tokio::spawn(async move {
            // It ends only with its task: accept errors pause and go on.
            let service = router.into_make_service_with_connect_info::<Lease>();
            let _ = axum::serve(listener, service).await;
        });
        Ok(Running {
            task,
            file: Some(self.file),
        })
    }
}

/// A route may let its connection outlive the others.
impl Connected<IncomingStream<'_, Bounded<tokio::net::UnixListener>>> for Lease {
    fn connect_info(stream: IncomingStream<'_, Bounded<tokio::net::UnixListener>>) -> Lease {
        Brief::lease(stream.io())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Connects to the relay that runs on `dir`.
///
/// # Errors
///
/// `NotFound` or `ConnectionRefused` when none does; `WouldBlock` when it takes no connection for
/// [`CONTROL_ANSWER_WAIT`].
pub fn connect(dir: &Path) -> io::Result<UnixStream> {
    connect_to(dir, NAME, SocketType::STREAM)
}

/// Connects to the socket of hand-overs of the relay that runs on `dir`. What it gives keeps records
/// apart.
///
/// # Errors
///
/// `NotFound` or `ConnectionRefused` when none does, or none that hands over; `WouldBlock` as above.
pub fn connect_records(dir: &Path) -> io::Result<UnixStream> {
    connect_to(dir, HAND_OVER_NAME, SocketType::SEQPACKET)
}

fn connect_to(dir: &Path, name: &str, kind: SocketType) -> io::Result<UnixStream> {
    let stream = UnixStream::from(new(kind)?);
    // A queue that is full holds up whoever connects for as long as a write.
    stream.set_write_timeout(Some(CONTROL_ANSWER_WAIT))?;
    with_short_path(dir, name, |path| {
        rustix::net::connect(&stream, &SocketAddrUnix::new(path)?)?;
        Ok(())
    })?;
    stream.set_write_timeout(None)?;
    Ok(stream)
}

fn new(kind: SocketType) -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
}

/// Binds with mode 0600 from the first moment: the socket's own mode becomes the file's.
fn bind_private(dir: &Path, name: &str, kind: SocketType) -> io::Result<UnixListener> {
    let socket = new(kind)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    with_short_path(dir, name, |path| {
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(())
    })?;
    rustix::net::listen(&socket, ADMIN_CONNECTIONS_MAX as i32)?;
    Ok(UnixListener::from(socket))
}

/// Calls `f` with a path to the socket of a name in `dir` that fits an address: at most 107 bytes. A longer
/// one goes by way of the folder's descriptor.
fn with_short_path<T>(
    dir: &Path,
    name: &str,
    f: impl FnOnce(&Path) -> io::Result<T>,
) -> io::Result<T> {
    const ADDRESS_BYTES_MAX: usize = 107;
    let path = dir.join(name);
    if path.as_os_str().len() <= ADDRESS_BYTES_MAX {
        return f(&path);
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(dir, flags, Mode::empty())?;
    let short: OsString = format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()).into();
    f(Path::new(&short))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;

    fn ask(dir: &Path) -> String {
        let mut stream = connect(dir).expect("connect");
        stream.write_all(b"GET /x HTTP/1.0\r\n\r\n").expect("write");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("read");
        answer
    }

    #[tokio::test]
    async fn it_is_private_answers_and_replaces_a_leftover_also_in_a_deep_folder() {
        let temporary = tempfile::tempdir().expect("a folder");
        let deep = temporary.path().join("d".repeat(150));
        std::fs::create_dir(&deep).expect("a folder");
        for dir in [temporary.path().to_owned(), deep] {
            std::fs::write(dir.join(NAME), "left over").expect("write");
            let socket = Socket::bind(&dir).expect("bind");
            let mode = std::fs::metadata(dir.join(NAME)).expect("a file");
            assert_eq!(mode.permissions().mode() & 0o777, 0o600);
            let router = Router::new().route("/x", get(|| async { "here" }));
            let running = socket.serve(router).expect("serve");
            let asked = dir.clone();
            let answer = tokio::task::spawn_blocking(move || ask(&asked)).await;
            assert!(answer.expect("an answer").ends_with("here"));
            drop(running);
            assert!(connect(&dir).is_err());
            assert!(!dir.join(NAME).exists());
        }
    }

    #[tokio::test]
    async fn one_that_was_handed_over_keeps_its_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let socket = Socket::bind_records(dir.path()).expect("bind");
        let next = socket.handle().expect("a handle");
        let (listener, file) = socket.into_parts();
        file.leave();
        drop(listener);
        connect_records(dir.path()).expect("the same socket");
        let next = Socket::adopt(dir.path(), HAND_OVER_NAME, next).expect("the socket");
        drop(next);
        assert!(!dir.path().join(HAND_OVER_NAME).exists());
        let control = Socket::bind(dir.path()).expect("bind");
        control.serve(Router::new()).expect("serve").leave();
        assert!(dir.path().join(NAME).exists());
    }

    #[test]
    fn an_error_names_the_path() {
        let error = Socket::bind(Path::new("/nowhere/at/all")).expect_err("no folder");
        assert!(error.to_string().contains("/nowhere/at/all/control.sock"));
    }
}
