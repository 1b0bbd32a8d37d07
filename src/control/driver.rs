//! The choice between io_uring and epoll.

use std::io;

use super::start::StartError;
use crate::config::IoDriver;
use crate::shard::runtime::Driver;

/// Which driver runs, and why not the best one.
pub fn choose(wanted: IoDriver) -> Result<(Driver, String), StartError> {
    if wanted == IoDriver::Epoll {
        return Ok((Driver::Epoll, "asked for".to_owned()));
    }
    match Driver::probe() {
        (driver, None) => Ok((driver, "available".to_owned())),
        (Driver::Epoll, Some(error)) if wanted == IoDriver::IoUring => {
            let advice = advice(&error);
            Err(StartError::Driver(error, advice))
        }
        (Driver::Epoll, Some(error)) => {
            let advice = advice(&error);
            Ok((
                Driver::Epoll,
                format!("io_uring refused: {error}; {advice}"),
            ))
        }
        (driver, Some(error)) => Ok((driver, format!("without its newest flags: {error}"))),
    }
}

fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => {
            "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp \
             profile, and look at sysctl kernel.io_uring_disabled"
        }
        Some(libc::ENOMEM) => "raise the locked memory limit (LimitMEMLOCK=infinity)",
        // Podman's profile refuses what it does not know as if the kernel did not know it.
        Some(libc::ENOSYS) => {
            "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp \
             profile; outside of containers, this kernel has no io_uring, and Linux 5.10 or later has"
        }
        _ => "look at the kernel's log",
    }
}
