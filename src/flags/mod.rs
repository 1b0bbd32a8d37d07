//! The flags that move the caps: exactly one provider, chosen at start.
//!
//! There is no stacking and no fallback: a value comes from the chosen provider or it is the
//! default, which is 0 and means the gate's ceiling. So whatever goes wrong here, a flag can only
//! tighten. Once a provider has delivered, its last values stay in force through its outages.

use crate::config::FlagsChoice;
use crate::metrics::GateName;
use crate::shard::hooks::{self, Hook};

mod environment;
mod launchdarkly;

#[cfg(test)]
#[path = "../../tests/common/launchdarkly.rs"]
#[allow(missing_docs)]
pub(crate) mod fake;

pub use environment::{Environment, variable_of};
pub use launchdarkly::{LaunchDarkly, Periods};

/// The flag that moves a gate's limit. These keys are fixed: people's dashboards hold them.
pub const fn key_of(gate: GateName) -> &'static str {
    match gate {
        GateName::HistoryReads => "buzz.relay.concurrency.history-reads",
        GateName::Auth => "buzz.relay.concurrency.auth",
    }
}

/// What a provider says of one flag.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reading {
    /// Nothing yet: it has not delivered since the process started.
    NotDelivered,
    /// It has no value for it: the default.
    Absent,
    /// It has one that is not an integer: the default, and to be counted, because a cap may be
    /// looser than somebody meant.
    Mistyped,
    /// An integer.
    Value(i64),
}

impl Reading {
    /// The integer, if there is one.
    pub fn value(self) -> Option<i64> {
        match self {
            Reading::Value(value) => Some(value),
            _ => None,
        }
    }
}

/// The chosen provider.
#[derive(Debug)]
pub enum Flags {
    /// Always the defaults.
    Static,
    /// Environment variables, as they were at start.
    Environment(Environment),
    /// LaunchDarkly.
    LaunchDarkly(Box<LaunchDarkly>),
}

impl Flags {
    /// Starts the chosen provider, on the runtime this is called within. It waits a bounded time
    /// and never fails: a provider that is not there serves the defaults and keeps trying.
    pub async fn start(choice: &FlagsChoice) -> Flags {
        match choice {
            FlagsChoice::Static => Flags::Static,
            FlagsChoice::Environment(variables) => Flags::Environment(Environment::new(variables)),
            FlagsChoice::LaunchDarkly {
                sdk_key,
                relay_proxy,
            } => {
                let mut periods = Periods::default();
                if let Some(rebuild) = hooks::delay(Hook::Rebuild) {
                    periods.rebuild = rebuild;
                }
                let provider = LaunchDarkly::start(sdk_key, relay_proxy.as_ref(), periods).await;
                Flags::LaunchDarkly(Box::new(provider))
            }
        }
    }

    /// The provider's name, as the setting spells it.
    pub fn name(&self) -> &'static str {
        match self {
            Flags::Static => "static",
            Flags::Environment(_) => "environment",
            Flags::LaunchDarkly(_) => "launchdarkly",
        }
    }

    /// True once the provider has delivered; at once for those that read nothing from elsewhere.
    pub fn is_ready(&self) -> bool {
        match self {
            Flags::Static | Flags::Environment(_) => true,
            Flags::LaunchDarkly(provider) => provider.is_ready(),
        }
    }

    /// What it says of a gate's flag now. Never blocks on a network.
    pub fn read(&mut self, gate: GateName) -> Reading {
        match self {
            Flags::Static => Reading::Absent,
            Flags::Environment(provider) => provider.read(gate),
            Flags::LaunchDarkly(provider) => provider.read(gate),
        }
    }

    /// Lets the provider mend itself; call it at every refresh, within the runtime.
    pub fn tend(&mut self) {
        if let Flags::LaunchDarkly(provider) = self {
            provider.tend();
        }
    }

    /// Ends the provider. Its last flush has no deadline of its own, so this waits for it a bounded
    /// time and then leaves it behind.
    pub async fn close(self) {
        if let Flags::LaunchDarkly(provider) = self {
            provider.close().await;
        }
    }
}
