//! Sockets that a relay finds open at its start, as a service manager gives them.
#![allow(unsafe_code)] // Only between fork and exec can descriptors be put where the child expects them.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

/// The descriptor of the first socket.
const FIRST: RawFd = 3;
/// Above all that are inherited.
const ASIDE: RawFd = 64;

/// A command that runs `program` with these sockets and their names. The sockets live as long as it.
pub fn command(program: &str, sockets: &[(String, Arc<TcpListener>)]) -> Command {
    // Only the process itself knows its id.
    let script = "LISTEN_PID=$$ exec \"$0\" \"$@\"";
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, program]);
    let names: Vec<&str> = sockets.iter().map(|(name, _)| name.as_str()).collect();
    command
        .env("LISTEN_FDS", sockets.len().to_string())
        .env("LISTEN_FDNAMES", names.join(":"));
    let kept: Vec<_> = sockets.iter().map(|(_, one)| Arc::clone(one)).collect();
    // SAFETY: between fork and exec only calls that take no lock and no memory are allowed, and these
    // are system calls on numbers. The sockets live in the closure.
    unsafe {
        command.pre_exec(move || {
            for (number, socket) in kept.iter().enumerate() {
                done(libc::dup2(socket.as_raw_fd(), ASIDE + number as RawFd))?;
            }
            for number in 0..kept.len() as RawFd {
                done(libc::dup2(ASIDE + number, FIRST + number))?;
                done(libc::close(ASIDE + number))?;
            }
            Ok(())
        });
    }
    command
}

fn done(returned: libc::c_int) -> io::Result<()> {
    match returned {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
