//! AUTH (NIP-42): who a connection's client is, and whether the relay serves it.
//!
//! The order is fixed: the frame's own checks, then the auth gate, then the store's. Only real
//! logins queue for the gate, and only the store's checks hold a permit. The reader of the
//! connection runs all of it, so while a login waits its socket is not read and TCP pushes back.
//!
//! Invariant: every attempt ends with exactly one outcome. [`Attempt`] counts one when it is
//! dropped without any, whatever dropped it.

use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::limits::{AUTH_CHALLENGE_BYTES, KEYS_PER_CONNECTION_MAX, LOGIN_WAIT};
use crate::metrics::{AuthOutcome, CloseReason, Label};
use crate::nostr::auth;
use crate::nostr::event::Event;
use crate::nostr::message::{self, Prefix, Reason};
use crate::nostr::sealed::Viewer;
use crate::shard::Shard;
use crate::shard::admission::{Refused, unless_ended};
use crate::shard::conn::{Conn, Phase};
use crate::shard::history;
use crate::shard::hooks::{self, Hook};
use crate::store::embedded::Access;
use crate::store::{Reader, StoreError};
use crate::thin::ThinBytes;
use crate::ws::close;

/// What a client has to sign: unpredictable, one for each connection.
pub type Challenge = [u8; AUTH_CHALLENGE_BYTES];

/// A fresh challenge.
///
/// # Errors
///
/// If the kernel gives no random bytes; the connection is then refused rather than guessable.
pub fn challenge() -> Result<Challenge, getrandom::Error> {
    let mut bytes = Challenge::default();
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

/// Sends the challenge, the first frame of every connection.
pub fn greet(shard: &Rc<Shard>, conn: &Rc<Conn>) {
    let challenge = const_hex::encode(conn.challenge);
    conn.send(shard, |batch| {
        batch.push_text(|out| message::write_auth(out, &challenge));
    });
}

/// One AUTH frame, from its arrival to its one outcome.
pub struct Attempt<'a> {
    shard: &'a Shard,
    conn: &'a Conn,
    started: Instant,
    outcome: Option<AuthOutcome>,
}

impl<'a> Attempt<'a> {
    /// Counts an attempt.
    pub fn begin(shard: &'a Shard, conn: &'a Conn) -> Attempt<'a> {
        shard.metrics.auth_attempts.increment(1);
        conn.attempted.set(true);
        Attempt {
            shard,
            conn,
            started: Instant::now(),
            outcome: None,
        }
    }

    /// Ends the attempt with its outcome.
    pub fn end(mut self, outcome: AuthOutcome) {
        self.outcome = Some(outcome);
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        // Cut short: the client left, or a drain told it to.
        let cut_short = match self.conn.ended_by() {
            Some(CloseReason::Restart) => AuthOutcome::Shutdown,
            _ => AuthOutcome::Disconnect,
        };
        let outcome = self.outcome.unwrap_or(cut_short);
        self.shard.metrics.auth_outcomes.of(outcome).increment(1);
        let label = outcome.as_label();
        let line = match outcome {
            AuthOutcome::Success => label.to_owned(),
            _ => format!("denied/{label}"),
        };
        tracing::info!(
            target: "access",
            connection = %self.conn.name(self.shard),
            shard = self.shard.id,
            peer = %self.conn.peer(),
            client = %self.conn.client(),
            outcome = line,
            duration_ms = self.started.elapsed().as_millis() as u64,
            "auth"
        );
    }
}

/// A connection that ends without any AUTH frame on a relay that requires one is an attempt too.
pub fn ended(shard: &Shard, conn: &Conn) {
    if shard.config().login_required() && conn.counted.get() && !conn.attempted.get() {
        let attempt = Attempt::begin(shard, conn);
        if conn.ended_by() == Some(CloseReason::AuthTimeout) {
            attempt.end(AuthOutcome::Timeout);
        }
    }
}

/// Answers an AUTH frame. Runs on the connection's reader.
pub async fn attend(shard: &Rc<Shard>, conn: &Rc<Conn>, event: Event) {
    let attempt = Attempt::begin(shard, conn);
    if let Err(reason) = check_frame(shard, conn, &event) {
        ok(shard, conn, &event, Some(&reason));
        return attempt.end(AuthOutcome::Invalid);
    }
    let _pending = conn.login_pending();
    let held = match shard.auth.at_once() {
        Some(held) => Ok(held),
        None => shard.auth.wait(conn).await,
    };
    let held = match held {
        Ok(held) => held,
        Err(Refused::Gone) => return,
        Err(Refused::Shed(_)) => {
            attempt.end(AuthOutcome::ConcurrencyLimit);
            conn.close(shard, CloseReason::AuthShed, None, "");
            return;
        }
    };
    let checked = unless_ended(conn, check_access(shard, event.pubkey())).await;
    drop(held);
    match checked {
        None => {}
        Some(Err(error)) => {
            tracing::warn!(%error, "an access check failed");
            let text = "the store cannot answer, retry shortly";
            ok(
                shard,
                conn,
                &event,
                Some(&Reason::fixed(Prefix::Error, text)),
            );
            attempt.end(AuthOutcome::CheckError);
        }
        Some(Ok(access)) => attempt.end(judge(shard, conn, &event, access)),
    }
}

/// Decides by what the access lists say of a key.
fn judge(shard: &Rc<Shard>, conn: &Rc<Conn>, event: &Event, access: Access) -> AuthOutcome {
    let config = shard.config();
    if access.banned {
        let reason = Reason::fixed(Prefix::Blocked, "this key is banned");
        ok(shard, conn, event, Some(&reason));
        let code = Some(close::POLICY_VIOLATION);
        conn.close(shard, CloseReason::Banned, code, "banned");
        return AuthOutcome::Banned;
    }
    let denied = if config.pubkey_allowlist && !access.allowed {
        Some((
            "this key is not on the allow-list",
            AuthOutcome::AllowlistDenied,
        ))
    } else if config.require_membership && !access.member {
        Some(("this key is not a member", AuthOutcome::NotRelayMember))
    } else {
        None
    };
    if let Some((text, outcome)) = denied {
        // It may have been let in by an earlier login: this one is what counts.
        conn.remove_key(shard, event.pubkey());
        let reason = Reason::fixed(Prefix::Restricted, text);
        ok(shard, conn, event, Some(&reason));
        if !conn.is_authenticated() {
            lock_out(shard, conn);
        }
        return outcome;
    }
    if !conn.add_key(shard, event.pubkey()) {
        let text = "too many keys on this connection";
        ok(
            shard,
            conn,
            event,
            Some(&Reason::fixed(Prefix::Error, text)),
        );
        return AuthOutcome::CheckError;
    }
    ok(shard, conn, event, None);
    AuthOutcome::Success
}

/// Nobody is logged in any more, where somebody must be: the subscriptions end, and the time to a
/// login starts again.
fn lock_out(shard: &Rc<Shard>, conn: &Rc<Conn>) {
    let reason = Reason::fixed(Prefix::AuthRequired, "log in to read");
    for sub in conn.sub_ids() {
        history::closed(shard, conn, &sub, &reason);
    }
    // A login is pending, this one; its guard leaves the time as it is here.
    conn.login_end
        .set(Some((Instant::now() + LOGIN_WAIT).into()));
}

/// What needs nothing but the frame: signature, kind, challenge, relay, age.
fn check_frame(shard: &Shard, conn: &Conn, event: &Event) -> Result<(), Reason> {
    if !event.id_matches() || !shard.verifier.borrow_mut().verify(event) {
        let text = "the login's id or signature does not verify";
        return Err(Reason::fixed(Prefix::AuthRequired, text));
    }
    let challenge = const_hex::encode(conn.challenge);
    auth::check(event, &challenge, &shard.relay_url, shard.unix_seconds())
}

async fn check_access(shard: &Shard, key: &[u8; 32]) -> Result<Access, StoreError> {
    hooks::pause(Hook::Access).await;
    match &shard.reader {
        Reader::Embedded(reader) => reader.access(key),
        // What it says is acted on in the turn in which it comes.
        Reader::Postgres(reader) => reader.access(*key).await,
    }
}

fn ok(shard: &Rc<Shard>, conn: &Rc<Conn>, event: &Event, reason: Option<&Reason>) {
    if conn.phase() == Phase::Open {
        conn.send(shard, |batch| {
            batch.push_text(|out| message::write_ok(out, event.id(), reason.is_none(), reason));
        });
    }
}

impl Conn {
    /// Stops the time that a client has for its first login, until the guard is dropped.
    pub fn login_pending(&self) -> LoginPending<'_> {
        let end = self.login_end.take();
        self.login_pending.set(true);
        LoginPending {
            conn: self,
            left: end.map(|end| end.instant().saturating_duration_since(Instant::now())),
        }
    }

    /// Takes note of a key that has logged in. Returns false when there are too many.
    pub fn add_key(&self, shard: &Shard, key: &[u8; 32]) -> bool {
        if self.has_key(key) {
            return true;
        }
        let mut keys = self.with_keys(<[_]>::to_vec);
        if keys.len() >= KEYS_PER_CONNECTION_MAX {
            return false;
        }
        keys.push(*key);
        self.set_keys(&keys);
        if keys.len() == 1 {
            shard.metrics.authenticated_active.increment(1.0);
        }
        true
    }

    /// Whether this key has logged in here.
    pub fn has_key(&self, key: &[u8; 32]) -> bool {
        self.with_keys(|keys| keys.contains(key))
    }

    /// Whether one of these keys, which are sorted, has logged in here.
    pub fn has_one_of(&self, sorted: &[[u8; 32]]) -> bool {
        let is_one = |key: &[u8; 32]| sorted.binary_search(key).is_ok();
        self.with_keys(|keys| keys.iter().any(is_one))
    }

    /// Forgets a key: its login was repeated, and refused this time.
    pub fn remove_key(&self, shard: &Shard, key: &[u8; 32]) {
        let mut keys = self.with_keys(<[_]>::to_vec);
        let before = keys.len();
        keys.retain(|other| other != key);
        self.set_keys(&keys);
        if before > 0 && keys.is_empty() {
            shard.metrics.authenticated_active.decrement(1.0);
        }
    }

    /// Who its client is, for what is served to some only.
    pub fn viewer(&self) -> Viewer {
        self.with_keys(Viewer::new)
    }

    /// Whether any key has logged in here.
    pub fn is_authenticated(&self) -> bool {
        !self.with_keys(<[_]>::is_empty)
    }

    fn with_keys<T>(&self, look: impl FnOnce(&[[u8; 32]]) -> T) -> T {
        let keys = self.keys.take();
        let seen = look(keys.as_deref().unwrap_or_default().as_chunks().0);
        self.keys.set(keys);
        seen
    }

    fn set_keys(&self, keys: &[[u8; 32]]) {
        let keys = (!keys.is_empty()).then(|| ThinBytes::new(keys.as_flattened()));
        self.keys.set(keys);
    }
}

/// A login is being checked. See [`Conn::login_pending`].
pub struct LoginPending<'a> {
    conn: &'a Conn,
    /// What was left; `None` if no time was running.
    left: Option<Duration>,
}

impl Drop for LoginPending<'_> {
    fn drop(&mut self) {
        self.conn.login_pending.set(false);
        if self.conn.is_authenticated() {
            self.conn.login_end.set(None);
        } else if let Some(left) = self.left {
            self.conn
                .login_end
                .set(Some((Instant::now() + left).into()));
        }
    }
}
