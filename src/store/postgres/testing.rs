//! A real PostgreSQL for tests and benches: a throw-away cluster on a free port of this machine. No
//! part of the relay.
//!
//! The server is held by a shell of its own, whose standard input is a pipe from this process. When
//! this process ends, however it ends, the pipe closes; the shell then ends the server by its id and
//! removes its folder. Both are a process group of their own: a signal that ends a whole group of
//! tests does not end the server first, nor the shell that is to clear up.

mod proxy;

pub use proxy::Proxy;

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio_postgres::NoTls;

use crate::secret::Secret;

/// Longest wait for a server to start.
const START_WAIT: Duration = Duration::from_secs(60);
/// Ports that are tried.
const PORTS_MAX: usize = 5;

/// Makes the cluster, runs the server, waits for the end of standard input. `$1` the folder, `$2` the
/// port, `$3` the programs' folder, `$4` who is to run them or nothing, `$5` the port of the server whose
/// standby it is to be or nothing; the rest are options of the server.
///
/// At the end `TERM` comes first: a program that the shell runs in the background ignores `QUIT` until
/// the server has its own handlers, and would then be left behind.
const SCRIPT: &str = r#"
dir=$1; port=$2; bin=$3; user=$4; primary=$5; shift 5
if [ -n "$user" ]; then
    as="setpriv --reuid=$user --regid=$user --clear-groups --"
    chown "$user" "$dir" || exit 1
fi
cd "$dir" || exit 1
if [ -n "$primary" ]; then
    $as "$bin/pg_basebackup" -D "$dir/data" -R -X stream -c fast --no-sync -h 127.0.0.1 -p "$primary" \
        -U buzz </dev/null || exit 1
else
    $as "$bin/initdb" -D "$dir/data" -A trust --no-sync -U buzz -E UTF8 --locale=C </dev/null || exit 1
fi
serve() {
    $as "$bin/postgres" -D "$dir/data" -c listen_addresses=127.0.0.1 -c port="$port" \
        -c unix_socket_directories= -c max_connections=400 -c shared_buffers=96MB \
        -c max_wal_size=2GB -c autovacuum_naptime=5s -c dynamic_shared_memory_type=mmap "$@" </dev/null &
    server=$!
}
serve "$@"
while read -r word; do
    case $word in
        stop) kill -INT "$server"; wait "$server" ;;
        quit) kill -QUIT "$server"; wait "$server" ;;
        start) serve "$@" ;;
    esac
done
kill -TERM "$server" 2>/dev/null
kill -QUIT "$server" 2>/dev/null
wait "$server"
cd /
rm -rf "$dir"
"#;

/// A server of this process's own.
#[derive(Debug)]
pub struct Cluster {
    dir: PathBuf,
    port: u16,
    holder: Child,
    databases: AtomicU32,
}

impl Cluster {
    /// The server that the tests of one binary share. Its commits are not durable.
    ///
    /// # Errors
    /// Why there is none: a test that needs it says so and is skipped.
    pub fn shared() -> Result<&'static Cluster, &'static str> {
        static SHARED: OnceLock<Result<Cluster, String>> = OnceLock::new();
        let fast = ["-c", "fsync=off", "-c", "full_page_writes=off"];
        let shared = SHARED.get_or_init(|| Cluster::start(&fast));
        shared.as_ref().map_err(String::as_str)
    }

    /// Starts a server with these options, in memory where there is such a place.
    ///
    /// # Errors
    /// Why it cannot be had.
    pub fn start(options: &[&str]) -> Result<Cluster, String> {
        let memory = Path::new("/dev/shm");
        match memory.is_dir() {
            true => Cluster::start_in(memory, options),
            false => Cluster::start_in(&std::env::temp_dir(), options),
        }
    }

    /// Starts a server with these options, in a new folder within this one.
    ///
    /// # Errors
    /// Why it cannot be had.
    pub fn start_in(place: &Path, options: &[&str]) -> Result<Cluster, String> {
        Cluster::start_as(place, "", options)
    }

    /// Starts a standby of this server, which follows it, and takes its place when it is told
    /// `SELECT pg_promote()`.
    ///
    /// # Errors
    /// Why it cannot be had.
    pub fn standby(&self) -> Result<Cluster, String> {
        let place = self.dir.parent().unwrap_or(Path::new("/"));
        Cluster::start_as(place, &self.port.to_string(), &[])
    }

    fn start_as(place: &Path, primary: &str, options: &[&str]) -> Result<Cluster, String> {
        let bin = programs().ok_or("no PostgreSQL is installed here")?;
        let mut reason = String::new();
        for _ in 0..PORTS_MAX {
            match Cluster::try_start(place, &bin, primary, options) {
                Ok(cluster) => return Ok(cluster),
                Err(error) => reason = error,
            }
        }
        Err(reason)
    }

    fn try_start(
        place: &Path,
        bin: &Path,
        primary: &str,
        options: &[&str],
    ) -> Result<Cluster, String> {
        let dir = folder(place).map_err(|error| format!("no folder: {error}"))?;
        let port = free_port().map_err(|error| format!("no port: {error}"))?;
        // A server does not run as root.
        let user = match rustix::process::geteuid().is_root() {
            true => "postgres",
            false => "",
        };
        let log = fs::File::create(dir.join("log")).map_err(|error| error.to_string())?;
        let errors = log.try_clone().map_err(|error| error.to_string())?;
        let holder = Command::new("sh")
            .args(["-c", SCRIPT, "sh"])
            .arg(&dir)
            .arg(port.to_string())
            .arg(bin)
            .arg(user)
            .arg(primary)
            .args(options)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(|error| format!("no shell: {error}"))?;
        let mut cluster = Cluster {
            dir,
            port,
            holder,
            databases: AtomicU32::new(0),
        };
        cluster.wait_until_ready().map_err(|error| {
            let log = fs::read_to_string(cluster.dir.join("log")).unwrap_or_default();
            // The shell may have ended before it had anything to clear up.
            let _ = fs::remove_dir_all(&cluster.dir);
            format!("PostgreSQL does not start: {error}: {log}")
        })?;
        Ok(cluster)
    }

    fn wait_until_ready(&mut self) -> Result<(), String> {
        let started = Instant::now();
        loop {
            if let Ok(Some(status)) = self.holder.try_wait() {
                return Err(format!("ended with {status}"));
            }
            let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            if log.contains("could not create any TCP/IP sockets") {
                return Err("its port was taken".to_owned());
            }
            match self.try_run("postgres", "SELECT 1") {
                Ok(()) => return Ok(()),
                Err(error) if started.elapsed() > START_WAIT => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// CPU time of the server with all its processes, those that have ended included.
    pub fn cpu(&self) -> Duration {
        let pid = fs::read_to_string(self.dir.join("data/postmaster.pid")).unwrap_or_default();
        let pid = pid.lines().next().unwrap_or_default().to_owned();
        let mut ticks = 0;
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            // The name, in parentheses, may hold anything.
            let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            let fields: Vec<&str> = fields.split_whitespace().collect();
            let own = entry.file_name().to_string_lossy() == *pid;
            if fields.len() > 15 && (own || fields[1] == pid) {
                let number = |at: usize| fields[at].parse::<u64>().unwrap_or(0);
                ticks += number(11) + number(12);
                if own {
                    ticks += number(13) + number(14);
                }
            }
        }
        let hertz = rustix::param::clock_ticks_per_second().max(1);
        Duration::from_millis(ticks * 1_000 / hertz)
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its port on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What the server has logged.
    pub fn log(&self) -> String {
        let log = fs::read(self.dir.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// A new database, and its URL.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn database(&self) -> Secret {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{number}");
        self.run("postgres", &format!("CREATE DATABASE {name}"));
        self.url(&name)
    }

    /// The URL of a database by way of another port.
    pub fn url_by(&self, port: u16, url: &Secret) -> Secret {
        let (own, other) = (format!(":{}/", self.port), format!(":{port}/"));
        Secret::new(url.expose().replace(&own, &other))
    }

    /// The URL of a database.
    pub fn url(&self, database: &str) -> Secret {
        Secret::new(url(self.port, database))
    }

    /// Runs statements on a database.
    ///
    /// # Panics
    /// If one fails.
    pub fn run(&self, database: &str, statements: &str) {
        if let Err(error) = self.try_run(database, statements) {
            panic!("{statements}: {error}");
        }
    }

    fn try_run(&self, database: &str, statements: &str) -> Result<(), String> {
        let url = url(self.port, database);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.map_err(|error| error.to_string())?.block_on(async {
            let (client, connection) = tokio_postgres::connect(&url, NoTls)
                .await
                .map_err(|error| error.to_string())?;
            tokio::spawn(async move { drop(connection.await) });
            let ran = client.batch_execute(statements).await;
            ran.map_err(|error| format!("{error:?}"))
        })
    }

    /// The number in the first column of a statement's first row.
    ///
    /// # Panics
    /// If it fails, or gives no such number.
    pub fn number(&self, database: &str, statement: &str) -> i64 {
        let rows = self.rows(database, statement);
        rows[0][0]
            .as_ref()
            .and_then(|text| text.parse().ok())
            .expect("a number")
    }

    /// A statement's rows, as text.
    ///
    /// # Panics
    /// If it fails.
    pub fn rows(&self, database: &str, statement: &str) -> Vec<Vec<Option<String>>> {
        let url = url(self.port, database);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async {
            let (client, connection) = tokio_postgres::connect(&url, NoTls)
                .await
                .expect("a connection");
            tokio::spawn(async move { drop(connection.await) });
            let messages = client.simple_query(statement).await.expect("an answer");
            let rows = messages.iter().filter_map(|message| match message {
                tokio_postgres::SimpleQueryMessage::Row(row) => {
                    let texts = (0..row.len()).map(|at| row.get(at).map(str::to_owned));
                    Some(texts.collect())
                }
                _ => None,
            });
            rows.collect()
        })
    }

    /// Says a word to the shell: `stop` ends the server, `quit` ends it without ceremony, `start`
    /// starts it again.
    ///
    /// # Panics
    /// If the shell has ended.
    pub fn say(&self, word: &str) {
        use io::Write;
        let mut input = self.holder.stdin.as_ref().expect("a pipe");
        writeln!(input, "{word}").expect("the shell listens");
    }

    /// Waits until the server answers.
    ///
    /// # Panics
    /// If it does not.
    pub fn wait_until_it_answers(&self) {
        let started = Instant::now();
        while let Err(error) = self.try_run("postgres", "SELECT 1") {
            assert!(started.elapsed() < START_WAIT, "{error}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

fn url(port: u16, database: &str) -> String {
    format!("postgres://buzz@127.0.0.1:{port}/{database}?sslmode=disable")
}

/// The folder of the newest server on this machine.
fn programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = |dir: &PathBuf| {
        let needed = ["postgres", "initdb", "pg_basebackup"];
        needed.iter().all(|name| dir.join(name).exists())
    };
    if let Some(dir) = std::env::split_paths(&path).find(has) {
        return Some(dir);
    }
    let installed = fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut installed: Vec<PathBuf> = installed
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(has)
        .collect();
    installed.sort();
    installed.pop()
}

fn folder(place: &Path) -> io::Result<PathBuf> {
    let mut name = [0; 8];
    getrandom::fill(&mut name).map_err(io::Error::from)?;
    let dir = place.join(format!("buzz-postgres-{}", const_hex::encode(name)));
    fs::create_dir(&dir)?;
    Ok(dir)
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
