//! The `launchdarkly` provider: its real SDK, and what the SDK leaves to its user.
//!
//! - The SDK's stream task ends for good on 401, 403 and other final answers, before or after the
//!   first delivery, and says so nowhere. So its transport is watched ([`watch`]), and a client whose
//!   stream has ended is replaced every minute. What was delivered is kept here meanwhile.
//! - Its default transport waits for ever on a half-open connection: ours has time limits.
//! - `int_variation` cuts a fraction to an integer: values are judged here instead.
//! - It has no listener for changes: the refresh reads the flags on a timer.
//! - Its logs and errors may hold the key or the URL. Its logs go nowhere (see `control::logs`), its
//!   errors are never printed: this provider says in its own words what happened.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use launchdarkly_sdk_transport::{HttpTransport, HyperTransport};
use launchdarkly_server_sdk::{
    ApplicationInfo, Client, ConfigBuilder, Context, ContextBuilder, EvalError,
    EventProcessorBuilder, FlagValue, Reason, ServiceEndpointsBuilder, StreamingDataSourceBuilder,
};
use tokio::sync::oneshot;

use super::{Reading, key_of};
use crate::limits;
use crate::metrics::{GateName, Label};
use crate::secret::Secret;

#[cfg(test)]
mod tests;
mod watch;

use watch::{Watch, Watched};

/// Times of the provider; tests shorten them.
#[derive(Clone, Copy, Debug)]
pub struct Periods {
    /// Longest wait at start.
    pub start: Duration,
    /// Between a stream that ended and the next client.
    pub rebuild: Duration,
    /// First pause before a lost stream is opened again.
    pub reconnect: Duration,
    /// Longest wait for a connection.
    pub connect: Duration,
    /// Longest wait for the head of an answer.
    pub answer: Duration,
    /// Longest silence of the stream.
    pub silence: Duration,
    /// Time without a sign of the stream's task after which it counts as ended.
    pub stall: Duration,
    /// Longest wait for the last flush.
    pub close: Duration,
}

impl Default for Periods {
    fn default() -> Periods {
        let ms = Duration::from_millis;
        Periods {
            start: ms(limits::FLAGS_START_MS_MAX),
            rebuild: ms(limits::FLAGS_REBUILD_MS),
            reconnect: ms(limits::FLAGS_RECONNECT_MS),
            connect: ms(limits::FLAGS_CONNECT_MS_MAX),
            answer: ms(limits::FLAGS_ANSWER_MS_MAX),
            silence: ms(limits::FLAGS_SILENCE_MS_MAX),
            stall: ms(limits::FLAGS_STALL_MS_MAX),
            close: ms(limits::FLAGS_CLOSE_MS_MAX),
        }
    }
}

/// The provider.
pub struct LaunchDarkly {
    sdk_key: Secret,
    relay_proxy: Option<Secret>,
    periods: Periods,
    context: Context,
    /// None while a client could not even be built.
    client: Option<Arc<Client>>,
    stream: Arc<Watch>,
    events: Arc<Watch>,
    /// When to build the next client; None while the present one is of use.
    rebuild_at: Option<Instant>,
    /// What was delivered last, by [`GateName`].
    last: [Reading; GateName::ALL.len()],
}

impl LaunchDarkly {
    /// Starts a client on the runtime this is called within, and waits for its first delivery for
    /// a bounded time.
    pub async fn start(
        sdk_key: &Secret,
        relay_proxy: Option<&Secret>,
        periods: Periods,
    ) -> LaunchDarkly {
        let context = ContextBuilder::new("relay").kind("relay").build();
        let mut provider = LaunchDarkly {
            sdk_key: sdk_key.clone(),
            relay_proxy: relay_proxy.cloned(),
            periods,
            context: context.expect("a fixed kind and key make a sound context"),
            client: None,
            stream: Watch::new("flag stream"),
            events: Watch::new("event delivery"),
            rebuild_at: None,
            last: [Reading::NotDelivered; GateName::ALL.len()],
        };
        provider.build();
        if let Some(client) = provider.client.clone() {
            client.wait_for_initialization(periods.start).await;
        }
        if !provider.is_ready() {
            tracing::warn!(
                "LaunchDarkly has not delivered: defaults or remembered caps apply until it does"
            );
        }
        provider
    }

    /// True once it has delivered, also while a later client has not.
    pub fn is_ready(&self) -> bool {
        let delivered = self
            .last
            .iter()
            .any(|reading| *reading != Reading::NotDelivered);
        delivered
            || self
                .client
                .as_ref()
                .is_some_and(|client| client.initialized())
    }

    /// The value in force: of this client, or the last one of an earlier client.
    pub fn read(&mut self, gate: GateName) -> Reading {
        if let Some(client) = &self.client
            && let Some(reading) = evaluate(client, &self.context, gate)
        {
            let last = &mut self.last[gate.index()];
            if reading == Reading::Mistyped && *last != reading {
                tracing::warn!(
                    flag = key_of(gate),
                    "flag is not an integer: its default applies"
                );
            }
            *last = reading;
        }
        self.last[gate.index()]
    }

    /// Replaces a client whose stream has ended, once its time has come.
    pub fn tend(&mut self) {
        let now = Instant::now();
        if self.rebuild_at.is_none() && self.has_ended(now) {
            self.rebuild_at = Some(now + self.periods.rebuild);
        }
        if self.rebuild_at.is_some_and(|at| now >= at) {
            self.rebuild_at = None;
            // What it delivered is what later clients stand in for.
            for gate in GateName::ALL {
                self.read(*gate);
            }
            if let Some(old) = self.client.take() {
                // Its close waits for its last events.
                leave_behind(move || old.close());
            }
            self.build();
        }
    }

    /// Closes the client on a thread of its own, and waits for that thread a bounded time.
    pub async fn close(mut self) {
        let Some(client) = self.client.take() else {
            return;
        };
        let (done, closed) = oneshot::channel();
        let started = leave_behind(move || {
            client.close();
            let _ = done.send(());
        });
        if started
            && tokio::time::timeout(self.periods.close, closed)
                .await
                .is_err()
        {
            tracing::warn!("LaunchDarkly's last flush takes too long and is left behind");
        }
    }

    /// True when this client will deliver nothing more.
    fn has_ended(&self, now: Instant) -> bool {
        let Some(client) = &self.client else {
            return true;
        };
        // A first delivery that the SDK could not read leaves a client that never becomes ready.
        let ready = now_or_never(client.wait_for_initialization(Duration::from_secs(1)));
        ready == Some(Some(false)) || self.stream.has_ended(now, self.periods.stall)
    }

    fn build(&mut self) {
        // A new watch, so that a sign of the old client's life is none of the new one's.
        self.stream = self.stream.successor();
        self.events = self.events.successor();
        let transport = || {
            HyperTransport::builder()
                .connect_timeout(self.periods.connect)
                .write_timeout(self.periods.answer)
        };
        let (silence, answer) = (self.periods.silence, self.periods.answer);
        let plain = self
            .relay_proxy
            .as_ref()
            .is_some_and(|url| url.expose().starts_with("http:"));
        // All traffic goes to the Relay Proxy, so HTTP_PROXY and its like must not move it.
        let direct = |builder: launchdarkly_sdk_transport::HyperTransportBuilder| {
            if self.relay_proxy.is_some() {
                builder.disable_proxy()
            } else {
                builder
            }
        };
        let stream = direct(transport().read_timeout(silence));
        let events = direct(transport().read_timeout(answer));
        let client = if plain {
            // Needs no certificates, of which a small image may have none.
            let both = stream
                .build_http()
                .and_then(|stream| Ok((stream, events.build_http()?)));
            both.ok()
                .and_then(|(stream, events)| self.client(stream, events))
        } else {
            let both = stream
                .build_https()
                .and_then(|stream| Ok((stream, events.build_https()?)));
            both.ok()
                .and_then(|(stream, events)| self.client(stream, events))
        };
        if client.is_none() {
            tracing::error!(
                "no LaunchDarkly client could be made (no certificates?); trying again"
            );
        }
        self.client = client;
    }

    fn client<T: HttpTransport>(&self, stream: T, events: T) -> Option<Arc<Client>> {
        let answer = self.periods.answer;
        let mut source = StreamingDataSourceBuilder::new();
        source
            .initial_reconnect_delay(self.periods.reconnect)
            .transport(Watched::stream(stream, Arc::clone(&self.stream), answer));
        let mut processor = EventProcessorBuilder::new();
        processor.transport(Watched::events(events, Arc::clone(&self.events), answer));
        let mut application = ApplicationInfo::new();
        application
            .application_identifier(env!("CARGO_PKG_NAME"))
            .application_version(crate::version::VERSION);

        let mut config = ConfigBuilder::new(self.sdk_key.expose())
            .application_info(application)
            .data_source(&source)
            .event_processor(&processor);
        if let Some(url) = &self.relay_proxy {
            config =
                config.service_endpoints(ServiceEndpointsBuilder::new().relay_proxy(url.expose()));
        }
        // Both errors may show the URL.
        let client = Client::build(config.build().ok()?).ok()?;
        client.start_with_default_executor();
        Some(Arc::new(client))
    }
}

impl fmt::Debug for LaunchDarkly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaunchDarkly")
            .field("ready", &self.is_ready())
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

/// What the client says; None when it has not been delivered to.
fn evaluate(client: &Client, context: &Context, gate: GateName) -> Option<Reading> {
    // Not `int_variation`: it cuts 2.9 to 2.
    let detail = client.variation_detail(context, key_of(gate), 0_i64);
    match detail.reason {
        Reason::Error {
            error: EvalError::ClientNotReady,
        } => return None,
        Reason::Error {
            error: EvalError::FlagNotFound,
        } => return Some(Reading::Absent),
        Reason::Error { .. } => return Some(Reading::Mistyped),
        _ => {}
    }
    // Switched off without a value for that: the SDK puts in our default and tells by no index.
    if detail.variation_index.is_none() {
        return Some(Reading::Absent);
    }
    Some(match detail.value {
        Some(FlagValue::Number(number)) => integer(number),
        Some(_) => Reading::Mistyped,
        None => Reading::Absent,
    })
}

fn integer(number: f64) -> Reading {
    let exact = number.fract() == 0.0 && number.abs() <= limits::FLAG_VALUE_MAX as f64;
    if exact {
        Reading::Value(number as i64)
    } else {
        Reading::Mistyped
    }
}

/// Runs what may take for ever on a thread that nobody waits for. False when no thread can be had:
/// then it is not run, and what it would have flushed is lost.
fn leave_behind(work: impl FnOnce() + Send + 'static) -> bool {
    let thread = std::thread::Builder::new().name("flags-close".to_owned());
    thread.spawn(work).is_ok()
}

/// One poll of a future that is asked only for what it knows already.
fn now_or_never<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}
