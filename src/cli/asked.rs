//! What the process can be asked to do, as data.

use std::path::PathBuf;

/// What the process is asked to do.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Command {
    /// Serve (no subcommand).
    Run,
    /// Print the resolved settings, open nothing.
    CheckConfig,
    /// Tell the relay that runs on the data folder to drain.
    Drain {
        /// Wait for its end, and end as it does.
        wait: bool,
    },
    /// Tell the relay that runs on the data folder to read its settings file again.
    Reload,
    /// Show or set the log level of the relay that runs on the data folder.
    LogLevel {
        /// The level as it was typed; none to show it.
        level: Option<String>,
    },
    /// Show or edit the access lists.
    Access(Access),
    /// Ask the health port of the relay that runs here.
    Health {
        /// Whether it wants traffic, not whether it lives.
        ready: bool,
    },
    /// Store the events that standard input gives.
    Import,
    /// Give the stored events to standard output.
    Export(Export),
    /// Copy the store into a new folder, while the relay runs or not.
    Backup {
        /// The folder to make.
        to: PathBuf,
    },
    /// Give the store's free pages back, while no relay runs.
    Compact,
    /// Bring the schema of the database up to date.
    Migrate {
        /// Only say what is missing.
        check: bool,
    },
}

/// What is asked of an export.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Export {
    /// Filters as they were typed; none for everything.
    pub filters: Vec<String>,
    /// Not older, in seconds since 1970.
    pub since: Option<u64>,
    /// Not newer, in seconds since 1970.
    pub until: Option<u64>,
}

/// What is asked of the access lists.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Access {
    /// Put keys on a list, or take them off.
    Edit {
        /// Which list, and which way.
        verb: AccessVerb,
        /// The keys as they were typed; at least one.
        keys: Vec<String>,
    },
    /// Print who is on a list.
    List {
        /// One JSON object a line.
        json: bool,
    },
}

/// One way to edit one list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AccessVerb {
    /// Ban.
    Ban,
    /// End a ban.
    Unban,
    /// Put on the allow-list.
    Allow,
    /// Take off the allow-list.
    Unallow,
    /// Make a member.
    AddMember,
    /// End a membership.
    RemoveMember,
}
