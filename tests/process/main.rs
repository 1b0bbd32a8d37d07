//! The real relay as its operators and clients see it: one process a test, spoken to over TCP.

#[path = "../common/mod.rs"]
mod common;

mod drivers;
mod endpoints;
mod events;
mod folder;
mod http;
mod rates;
mod resources;
mod secrets;
mod settings;
mod shutdown;
mod start;
mod subscriptions;
mod websocket;
