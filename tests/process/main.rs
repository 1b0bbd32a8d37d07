//! The real relay as its operators and clients see it: one process a test, spoken to over TCP.

#[path = "../common/mod.rs"]
mod common;

mod bounds;
mod drivers;
mod endpoints;
mod events;
mod folder;
mod frames;
mod http;
mod mailboxes;
mod rates;
mod resources;
mod secrets;
mod settings;
mod shutdown;
mod slow;
mod start;
mod subscriptions;
mod websocket;
