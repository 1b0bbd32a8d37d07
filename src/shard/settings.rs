//! What the shards serve by, and how it is exchanged while they do.
//!
//! Each shard holds a handle of its own, so that looking at a setting takes no lock and touches no
//! memory that another thread writes. New settings come by mail and are taken over whole between two
//! messages of clients: a shard never serves by half of them.

use std::cell::Ref;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use tracing::level_filters::LevelFilter;

use crate::config::Config;
use crate::limits::SETTINGS_LOOK;
use crate::shard::http::Pages;
use crate::shard::{Common, Mail, Shard};

/// What all shards serve by.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The settings.
    pub config: Config,
    /// What the public port serves over plain HTTP, made of them.
    pub pages: Pages,
}

/// New settings on their way to a shard. When every shard has dropped its own, all serve by them.
pub struct Exchange {
    settings: Arc<Settings>,
    _taken: SyncSender<()>,
}

impl Common {
    /// What the shards serve by, or are about to.
    pub fn settings(&self) -> Arc<Settings> {
        self.lock_settings().clone()
    }

    /// Notes a log level, which is nothing to a shard.
    pub fn note_log_level(&self, level: LevelFilter) {
        let mut settings = self.lock_settings();
        *settings = Arc::new(Settings {
            config: settings.config.with_log_level(level),
            pages: settings.pages.clone(),
        });
    }

    /// Hands new settings to every shard, and waits until all have taken them over, at most so long.
    /// Returns whether they have; a shard that was too busy to be told at all keeps its old ones until
    /// the next exchange. Blocks: not for a shard, nor for the control thread itself. One call at a
    /// time, or shards may differ in which is the last.
    pub fn exchange(&self, settings: Settings, wait: Duration) -> bool {
        let end = Instant::now() + wait;
        let settings = Arc::new(settings);
        let old = std::mem::replace(&mut *self.lock_settings(), settings.clone());
        let (sender, taken) = sync_channel(0);
        let mut told = true;
        for shard in 0..self.shards() {
            told &= self.hand(
                shard,
                Exchange {
                    settings: settings.clone(),
                    _taken: sender.clone(),
                },
                end,
            );
        }
        drop(sender);
        let left = end.saturating_duration_since(Instant::now());
        let all = told && taken.recv_timeout(left) == Err(RecvTimeoutError::Disconnected);
        let (was, is) = (
            old.config.addresses.opened,
            settings.config.addresses.opened,
        );
        if let (Some(was), Some(is)) = (was, is)
            && was != is
        {
            self.addresses.change_rate(&was, &is, Instant::now());
        }
        all
    }
}

impl Common {
    /// Puts them into a shard's mailbox, also one that is full for a moment.
    fn hand(&self, shard: usize, exchange: Exchange, end: Instant) -> bool {
        let mut mail = Mail::Settings(exchange);
        while let Err(back) = self.tell(shard, mail) {
            if Instant::now() >= end {
                return false;
            }
            mail = back;
            std::thread::sleep(SETTINGS_LOOK);
        }
        true
    }
}

impl Shard {
    /// The settings. Not to be held across a pause.
    pub fn config(&self) -> Ref<'_, Config> {
        Ref::map(self.settings.borrow(), |settings| &settings.config)
    }

    /// What plain HTTP is answered with. Not to be held across a pause.
    pub fn pages(&self) -> Ref<'_, Pages> {
        Ref::map(self.settings.borrow(), |settings| &settings.pages)
    }

    pub(super) fn take_over(self: &Rc<Self>, exchange: Exchange) {
        let old = self.settings.replace(exchange.settings.clone());
        let (was, is) = (old.config.rates, exchange.settings.config.rates);
        if was != is {
            let now = Instant::now();
            self.each_conn(|conn| conn.change_rates(&was, &is, now));
        }
    }
}
