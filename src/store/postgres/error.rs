//! What the database says, as errors of the store: without its words, which may repeat data.

use std::time::Duration;

use deadpool_postgres::PoolError;
use deadpool_postgres::TimeoutType;
use tokio_postgres::error::SqlState;

use crate::store::{StoreError, StoreErrorKind};

/// An error of a statement or a connection.
pub fn store_error(error: &tokio_postgres::Error) -> StoreError {
    match error.code() {
        Some(state) => by_state(state),
        None if error.is_closed() => unreachable("the connection has ended"),
        None => unreachable(""),
    }
}

/// An error of a pool.
pub fn pool_error(error: &PoolError) -> StoreError {
    match error {
        PoolError::Timeout(TimeoutType::Wait) => exhausted("all of the pool are in use"),
        PoolError::Timeout(_) => unreachable("no connection within its time"),
        PoolError::Backend(error) => store_error(error),
        PoolError::Closed | PoolError::NoRuntimeSpecified | PoolError::PostCreateHook(_) => {
            unreachable("the store is closed")
        }
    }
}

/// Nothing came back in time.
pub fn slow() -> StoreError {
    StoreError::new(StoreErrorKind::Slow, "")
}

/// The connection is gone, or there was none.
pub const fn unreachable(detail: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::Unreachable, detail)
}

/// No connection is free.
pub const fn exhausted(detail: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::ConnectionsExhausted, detail)
}

/// What is stored cannot be read back.
pub const fn corrupt(detail: &'static str) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, detail)
}

/// Whether the connection is of no use after an error: it has ended, or its server has become
/// another one.
pub fn ends_connection(error: &StoreError) -> bool {
    matches!(
        error.kind(),
        StoreErrorKind::Unreachable
            | StoreErrorKind::ReadOnly
            | StoreErrorKind::Broken
            | StoreErrorKind::Corrupt
    )
}

/// Waits for an answer at most so long.
pub async fn within<T>(
    wait: Duration,
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(wait, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(store_error(&error)),
        Err(_) => Err(slow()),
    }
}

fn by_state(state: &SqlState) -> StoreError {
    let of = |kind, detail| StoreError::new(kind, detail);
    match state.code() {
        "53100" => of(StoreErrorKind::Full, "its disk"),
        "53300" => exhausted("the server gives no more"),
        "25006" => of(StoreErrorKind::ReadOnly, ""),
        "57014" => of(StoreErrorKind::Slow, "a statement ran into its time limit"),
        "55P03" => of(StoreErrorKind::Slow, "a lock was not to be had in time"),
        "40001" | "40P01" => of(StoreErrorKind::Slow, "a conflict"),
        // The tables are missing, or are not ours.
        "42P01" | "42703" | "42883" | "3F000" => of(
            StoreErrorKind::Broken,
            "its schema is not the one this program knows",
        ),
        "42501" => of(StoreErrorKind::Broken, "the role lacks a right"),
        // A plan that no longer fits: gone with the connection.
        "0A000" | "26000" => unreachable("its schema has changed"),
        "25P03" | "25P04" => unreachable("a transaction was ended for its age"),
        "53400" => of(StoreErrorKind::Full, "a limit of its configuration"),
        code => match &code[..2] {
            "08" | "57" => unreachable("the server is shutting down, starting or failing over"),
            "28" => unreachable("it refuses the login"),
            "3D" => unreachable("there is no such database"),
            "53" => exhausted("the server is out of resources"),
            "58" => of(StoreErrorKind::Io, "its server's system"),
            "XX" => of(StoreErrorKind::Corrupt, "its server says so"),
            "22" | "23" | "54" => corrupt("the database refuses a value"),
            _ => of(StoreErrorKind::Io, "an unforeseen answer"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_told_apart_by_what_can_be_done() {
        let kind = |state| by_state(&SqlState::from_code(state)).kind();
        assert_eq!(kind("25006"), StoreErrorKind::ReadOnly);
        assert_eq!(kind("53300"), StoreErrorKind::ConnectionsExhausted);
        assert_eq!(kind("53100"), StoreErrorKind::Full);
        assert_eq!(kind("57P01"), StoreErrorKind::Unreachable);
        assert_eq!(kind("57P03"), StoreErrorKind::Unreachable);
        assert_eq!(kind("57014"), StoreErrorKind::Slow);
        assert_eq!(kind("55P03"), StoreErrorKind::Slow);
        assert_eq!(kind("08006"), StoreErrorKind::Unreachable);
        assert_eq!(kind("23505"), StoreErrorKind::Corrupt);
        assert_eq!(kind("42P01"), StoreErrorKind::Broken);
        for state in [
            "25006", "53300", "53100", "57P01", "57014", "55P03", "58030",
        ] {
            assert!(by_state(&SqlState::from_code(state)).retryable(), "{state}");
        }
    }
}
