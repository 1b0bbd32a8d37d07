//! What is taken away from a relay before it starts: descriptors, file sizes, rights, io_uring.
#![allow(unsafe_code)] // Only between fork and exec can this be done to a child alone.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Resource, Rlimit, ioctl_tiocsctty, setrlimit, setsid};

/// One thing that is taken away.
#[derive(Clone, Copy, Debug)]
pub enum Confine {
    /// Descriptors that the process may hold, hard limit included.
    Descriptors(u64),
    /// Bytes to which a file may grow, hard limit included.
    FileBytes(u64),
    /// The right of root to write where permission bits forbid it.
    Override,
    /// io_uring, refused with EPERM as container runtimes do.
    IoUring,
    /// Its session: it gets one of its own, with the terminal at its standard input.
    Terminal,
    /// Entering a ring, refused with EPERM; setting one up goes well.
    EnterRing,
}

/// Applies them to the child that `command` will start.
pub fn confine(command: &mut Command, all: Vec<Confine>) {
    if all.is_empty() {
        return;
    }
    // SAFETY: between fork and exec only calls that take no lock and no memory are allowed. `apply`
    // makes system calls on values of its own stack, and the loop reads a vector made before.
    unsafe {
        command.pre_exec(move || all.iter().try_for_each(|confine| apply(*confine)));
    }
}

fn apply(confine: Confine) -> io::Result<()> {
    match confine {
        Confine::Descriptors(limit) => bound(Resource::Nofile, limit),
        Confine::FileBytes(limit) => bound(Resource::Fsize, limit),
        Confine::Override => drop_override(),
        Confine::IoUring => refuse(libc::SYS_io_uring_setup),
        Confine::Terminal => {
            setsid()?;
            Ok(ioctl_tiocsctty(rustix::stdio::stdin())?)
        }
        Confine::EnterRing => refuse(libc::SYS_io_uring_enter),
    }
}

fn bound(resource: Resource, limit: u64) -> io::Result<()> {
    let limit = Rlimit {
        current: Some(limit),
        maximum: Some(limit),
    };
    Ok(setrlimit(resource, limit)?)
}

/// Numbers of capabilities (linux/capability.h), which libc does not name.
const CAP_DAC_OVERRIDE: libc::c_ulong = 1;
const CAP_DAC_READ_SEARCH: libc::c_ulong = 2;

/// A process without root's rights has nothing to drop.
fn drop_override() -> io::Result<()> {
    for capability in [CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH] {
        // SAFETY: this option takes a number and no pointer.
        let done = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        let error = io::Error::last_os_error();
        if done != 0 && error.raw_os_error() != Some(libc::EPERM) {
            return Err(error);
        }
    }
    Ok(())
}

fn refuse(call: libc::c_long) -> io::Result<()> {
    let statement = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let refusal = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    // The number of the call is at offset 0 of what a filter sees.
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            call as u32,
        ),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, refusal),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the first call takes numbers. The second reads `program` and `filter`, which outlive
    // it, and the kernel keeps its own copy.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
    };
    if done {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
