//! Events on their way to subscribers: who wants this event, and was it heard before.

mod index;
mod keys;
mod packed;
mod recent;
mod subscriptions;

pub use recent::RecentIds;
pub use subscriptions::{Place, SubKey, Subscriptions};
