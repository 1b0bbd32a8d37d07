//! Where events are kept, how many bytes of them, and for how long.

use std::path::PathBuf;

use super::read::{self, Reader};
use super::retention;
use crate::limits;
use crate::secret::Secret;
use crate::store::retention::Retention;

/// Where events are kept.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum StoreKind {
    /// LMDB in the data folder.
    Embedded,
    /// PostgreSQL.
    Postgres {
        /// Database to write to.
        url: Secret,
        /// Database to read from, when it is another one.
        read_url: Option<Secret>,
    },
}

pub(super) fn store(reader: &mut Reader<'_>) -> StoreKind {
    #[derive(Clone, Copy, Eq, PartialEq)]
    enum Word {
        Embedded,
        Postgres,
    }
    let words = [("embedded", Word::Embedded), ("postgres", Word::Postgres)];
    let word = reader.word("BUZZ_STORE", &words);
    let form = "postgres://user:password@host:port/database";
    // The embedded store has no use for them, whatever they are.
    let accepts = |text: &str| matches!(word, Word::Embedded) || read::is_database_url(text);
    let url = reader.secret("DATABASE_URL", form, accepts);
    let read_url = reader.secret("READ_DATABASE_URL", form, accepts);
    match (word, url) {
        (Word::Embedded, _) => StoreKind::Embedded,
        (Word::Postgres, Some(url)) => StoreKind::Postgres { url, read_url },
        (Word::Postgres, None) => {
            // One that is not accepted has its fault already.
            if !reader.is_given("DATABASE_URL") {
                reader.fault(format!(
                    "DATABASE_URL: required with BUZZ_STORE=postgres; {form}"
                ));
            }
            StoreKind::Embedded
        }
    }
}

pub(super) fn data_dir(reader: &mut Reader<'_>) -> PathBuf {
    let form = "the path of a folder";
    reader.value("BUZZ_DATA_DIR", form, read::free_text).into()
}

pub(super) fn take_over(reader: &mut Reader<'_>, store: &StoreKind) -> bool {
    let take_over = reader.switch("BUZZ_TAKE_OVER");
    if take_over && matches!(store, StoreKind::Embedded) {
        reader.fault(
            "BUZZ_TAKE_OVER: an embedded store belongs to one process, so nothing can be taken over \
             while it runs; stop the old relay, then start the new one, or use BUZZ_STORE=postgres",
        );
    }
    take_over
}

/// How large the embedded store may grow, and what it keeps for how long.
pub(super) fn keeping(
    reader: &mut Reader<'_>,
    store: &StoreKind,
    frame_bytes_max: usize,
) -> (usize, Retention) {
    const BYTES: &str = "BUZZ_STORE_MAX_BYTES";
    const RULES: &str = "BUZZ_RETENTION";
    let bytes_max = reader.count(BYTES, limits::STORE_BYTES_MIN..=limits::STORE_BYTES_MAX);
    let needed = frame_bytes_max * limits::STORE_MESSAGES_MIN;
    if bytes_max < needed {
        reader.fault(format!(
            "{BYTES}: {bytes_max} bytes are too few for messages of BUZZ_MAX_FRAME_BYTES \
             {frame_bytes_max}; raise it to at least {needed}, or lower the latter"
        ));
    }
    let retention = reader.told(RULES, retention::FORM, retention::parse);
    for variable in [BYTES, RULES] {
        if *store != StoreKind::Embedded && reader.is_given(variable) {
            reader.note(format!(
                "{variable} has no effect: it is for the embedded store alone"
            ));
        }
    }
    (bytes_max, retention.unwrap_or_default())
}
