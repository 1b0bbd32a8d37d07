//! Events on their way to subscribers: who wants this event, and was it heard before.

mod recent;

pub use recent::RecentIds;
