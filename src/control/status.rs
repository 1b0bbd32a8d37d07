//! What the health server shows of the relay, put together from all rooms.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::admin::Status;
use super::caps::GateControl;
use super::door::Door;
use super::hand_over::give::Giver;
use super::open;
use super::refresh::Shown;
use crate::limits::HEARTBEAT_STALE;
use crate::metrics;
use crate::metrics::database::DatabaseMetrics;
use crate::shard::Common;
use crate::shard::runtime::Driver;
use crate::store::Store;

/// What the health server shows of the relay.
pub struct RelayStatus {
    /// What the shards share.
    pub common: Arc<Common>,
    /// The gates' limits.
    pub caps: Arc<GateControl>,
    /// The series of a PostgreSQL store.
    pub database: Option<DatabaseMetrics>,
    /// The flags.
    pub shown: Shown,
    /// What the shards run on.
    pub driver: Driver,
    /// Public, health, metrics.
    pub addresses: [SocketAddr; 3],
    /// The drain.
    pub door: Door,
    /// Hand-overs.
    pub giver: Giver,
}

impl Status for RelayStatus {
    fn alive(&self) -> Result<(), String> {
        for shard in 0..self.common.config.shards {
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
        let shards: Vec<Value> = (0..self.common.config.shards)
            .map(|id| {
                json!({
                    "id": id,
                    "sockets": self.common.sockets(id),
                    "heartbeat_age_ms": self.common.heartbeat_age(id).as_millis() as u64,
                })
            })
            .collect();
        self.caps.describe(&self.shown, status);
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
        status.insert(
            "connections".to_owned(),
            self.common.open_connections().into(),
        );
        status.insert("shards".to_owned(), shards.into());
        status.insert("drain".to_owned(), self.door.describe());
        status.insert("hand_over".to_owned(), self.giver.describe());
        let (imports, exports) = self.common.transfers.running();
        status.insert(
            "transfers".to_owned(),
            json!({ "imports": imports, "exports": exports }),
        );
        status.insert("store".to_owned(), open::describe(&self.common.store));
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
