//! Events in and out of a store by the line: one event a line, the event's JSON alone.
//!
//! Nothing in here knows which store it is, or whether the relay runs: [`Intake`](import::Intake)
//! and [`Outlet`](export::Outlet) are what a store, or the way to a relay, has to offer.
//!
//! | file | what it holds |
//! |---|---|
//! | [`lines`] | a stream of bytes cut into numbered lines of a bounded length |
//! | [`policy`] | what an import refuses, whoever signed it |
//! | [`check`] | one line to one event: shape, id, signature |
//! | [`pool`] | the checks on all cores, their results in the order of the lines |
//! | [`window`] | what became of each line, in order, however the answers come |
//! | [`inflow`] | what a store was given and has not answered, what it answered and nobody took |
//! | [`import`] | lines to an intake, and what is said of them |
//! | [`export`] | an outlet to lines |
//! | [`report`] | counts, refused lines, progress |
//! | [`running`] | the transfers of a running relay: how many, and their end |
//! | [`wire`] | how a relay and a command speak of it |

pub mod check;
pub mod export;
pub mod import;
pub mod inflow;
pub mod lines;
pub mod policy;
pub mod pool;
pub mod report;
pub mod running;
pub mod window;
pub mod wire;
