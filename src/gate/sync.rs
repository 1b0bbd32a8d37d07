//! The one file that knows which world the gate runs in: std, loom or shuttle.
//!
//! Everything that two threads can meet at is taken from here, so that the code a model checker
//! explores is the code that ships. The features `loom` and `shuttle` swap the primitives; the
//! rest of the gate does not know.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

#[cfg(all(feature = "loom", feature = "shuttle"))]
compile_error!("the features `loom` and `shuttle` exclude each other: choose one checker");

#[cfg(feature = "loom")]
mod world {
    pub use loom::sync::atomic::{AtomicU8, AtomicU64, Ordering};
    pub use loom::sync::{Mutex, MutexGuard};
}
#[cfg(all(feature = "shuttle", not(feature = "loom")))]
mod world {
    pub use shuttle::sync::atomic::{AtomicU8, AtomicU64, Ordering};
    pub use shuttle::sync::{Mutex, MutexGuard};
}
#[cfg(not(any(feature = "loom", feature = "shuttle")))]
mod world {
    pub use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
    pub use std::sync::{Mutex, MutexGuard};
}

pub(super) use world::{AtomicU8, AtomicU64, Ordering};

/// A mutex whose poisoning is ignored: every section under it is a few assignments that cannot
/// panic half-way, and a gate that refuses to work after a foreign panic would stop the relay.
pub(super) struct Lock<T>(world::Mutex<T>);

impl<T> Lock<T> {
    pub(super) fn new(value: T) -> Lock<T> {
        Lock(world::Mutex::new(value))
    }

    pub(super) fn hold(&self) -> Held<'_, T> {
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        #[cfg(debug_assertions)]
        HELD.with(|held| held.set(held.get() + 1));
        Held(guard)
    }
}

/// Proof that a [`Lock`] is held.
pub(super) struct Held<'a, T>(world::MutexGuard<'a, T>);

impl<T> Deref for Held<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

#[cfg(debug_assertions)]
impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        HELD.with(|held| held.set(held.get() - 1));
    }
}

#[cfg(debug_assertions)]
thread_local!(static HELD: std::cell::Cell<usize> = const { std::cell::Cell::new(0) });

/// How many queue locks this thread holds, in debug builds: a test's allocator asks it, to show
/// that nothing is allocated or freed under one.
#[cfg(debug_assertions)]
pub fn held_locks() -> usize {
    HELD.with(std::cell::Cell::get)
}

/// Gives a field cache lines of its own: two, because x86 fetches lines in pairs.
#[repr(align(128))]
pub(super) struct CachePadded<T>(pub(super) T);

impl<T> Deref for CachePadded<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}
