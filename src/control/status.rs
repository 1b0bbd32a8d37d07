//! What the health server shows of the relay.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::admin::Status;
use super::caps::GateControl;
use super::open;
use super::refresh::Shown;
use super::reload;
use super::stop::Door;
use crate::limits::HEARTBEAT_STALE;
use crate::metrics::database::DatabaseMetrics;
use crate::metrics::tally::{self, Tallies};
use crate::metrics::{self, AuthOutcome, CloseReason, DropReason, EventOutcome, Label, QueryKind};
use crate::shard::Common;
use crate::shard::runtime::Driver;
use crate::store::Store;

/// Where the answers come from.
pub struct RelayStatus {
    /// The shards.
    pub common: Arc<Common>,
    /// The gates.
    pub caps: Arc<GateControl>,
    /// The series of a database, where the store is one.
    pub database: Option<DatabaseMetrics>,
    /// The flags.
    pub shown: Shown,
    /// How the shards do I/O.
    pub driver: Driver,
    /// The real addresses: WebSocket, health, metrics.
    pub addresses: [SocketAddr; 3],
    /// The drain.
    pub door: Door,
}

impl Status for RelayStatus {
    fn alive(&self) -> Result<(), String> {
        for shard in 0..self.common.shards() {
            let age = self.common.heartbeat_age(shard);
            if age > HEARTBEAT_STALE {
                return Err(format!(
                    "shard {shard} has been silent for {} s",
                    age.as_secs()
                ));
            }
        }
        Ok(())
    }

    fn describe(&self, status: &mut Map<String, Value>) {
        let [public, health, metrics] = self.addresses;
        let common = &self.common;
        let shards: Vec<Value> = (0..common.shards()).map(|id| shard(common, id)).collect();
        self.caps.describe(&self.shown, &common.tallies, status);
        self.shown.describe(status);
        status.insert("driver".to_owned(), self.driver.name().into());
        status.insert(
            "addresses".to_owned(),
            json!({
                "websocket": public.to_string(),
                "health": health.to_string(),
                "metrics": metrics.to_string(),
            }),
        );
        status.insert("connections".to_owned(), common.open_connections().into());
        status.insert("shards".to_owned(), shards.into());
        status.insert("totals".to_owned(), totals(&common.tallies));
        status.insert("drain".to_owned(), self.door.describe());
        let level = reload::word(common.settings().config.log_level);
        status.insert("log_level".to_owned(), level.into());
        let (imports, exports) = common.transfers.running();
        status.insert(
            "transfers".to_owned(),
            json!({ "imports": imports, "exports": exports }),
        );
        status.insert(
            "store".to_owned(),
            open::describe(&common.store, &common.commits),
        );
    }

    fn before_scrape(&self) {
        self.caps.show();
        if let (Some(metrics), Store::Postgres(store)) = (&self.database, &self.common.store) {
            metrics.show(&store.status());
        }
        // A store that cannot be read says so elsewhere; its last figures stand meanwhile.
        if let Store::Embedded(store) = &self.common.store
            && let Ok(usage) = store.usage()
        {
            metrics::show_store(usage.used_bytes, usage.free_bytes, usage.events_max);
        }
    }
}

/// One shard: what it has now, and what it has ever counted.
fn shard(common: &Common, id: usize) -> Value {
    let tally = common.tallies.of(id);
    let queries = |kind: QueryKind| tally::read(&tally.queries[kind.index()]);
    json!({
        "id": id,
        "sockets": common.sockets(id),
        "heartbeat_age_ms": common.heartbeat_age(id).as_millis() as u64,
        "connections": tally::read(&tally.open),
        "subscriptions": tally::read(&tally.subscriptions),
        "queued_bytes": tally::read(&tally.queued_bytes),
        "events": tally::sum(&tally.events),
        "delivered": tally::read(&tally.delivered),
        "queries": queries(QueryKind::Req) + queries(QueryKind::Count),
    })
}

/// What all shards have ever counted.
fn totals(tallies: &Tallies) -> Value {
    let dropped = tallies.by_label::<DropReason>(|tally| &tally.dropped);
    json!({
        "connections": tallies.total(|tally| &tally.opened),
        "events": object(tallies.by_label::<EventOutcome>(|tally| &tally.events)),
        "delivered": tallies.total(|tally| &tally.delivered),
        "dropped": dropped.map(|(_, count)| count).sum::<u64>(),
        "queries": object(tallies.by_label::<QueryKind>(|tally| &tally.queries)),
        "closes": object(tallies.by_label::<CloseReason>(|tally| &tally.closes)),
        "logins": object(tallies.by_label::<AuthOutcome>(|tally| &tally.logins)),
    })
}

/// Numbers by their names.
pub(super) fn object(numbers: impl Iterator<Item = (&'static str, u64)>) -> Value {
    let members = numbers.map(|(name, count)| (name.to_owned(), count.into()));
    Value::Object(members.collect())
}
