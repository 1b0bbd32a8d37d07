//! A headless Chromium for one test, by what it and its driver need of WebDriver: JSON over HTTP, and
//! only the driver's extensions give the console, the requests and the screen. The crates for
//! WebDriver know none of those, and weigh twenty more.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{WAIT, skip};

/// Time between two looks at a page.
const LOOK: Duration = Duration::from_millis(50);

/// What Chromium is started with, beside its folder: it opens no window, and asks for nothing by
/// itself.
const ARGUMENTS: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--lang=en",
];

/// The browser, with one tab. It ends when this is dropped.
pub struct Browser {
    driver: Driver,
    session: String,
    _folder: TempDir,
}

impl Browser {
    /// Starts one. Without Chromium it says so and gives none.
    pub fn start(test: &str) -> Option<Browser> {
        let Some([chromium, driver]) = programs() else {
            skip(test, "no chromium and chromedriver on the path");
            return None;
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut arguments = vec![format!("--user-data-dir={}", folder.path().display())];
        arguments.extend(ARGUMENTS.map(str::to_owned));
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": { "binary": chromium, "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
        }}});
        let driver = Driver::start(driver);
        let opened = driver.ask("POST", "/session", &wanted);
        let session = opened["sessionId"].as_str().expect("a session");
        Some(Browser {
            session: format!("/session/{session}"),
            driver,
            _folder: folder,
        })
    }

    /// Opens a page and waits until it is loaded.
    #[track_caller]
    pub fn open(&self, url: &str) {
        self.ask("/url", json!({ "url": url }));
    }

    /// What an expression comes to, after its promise if it is one.
    #[track_caller]
    pub fn value(&self, expression: &str) -> Value {
        let script = format!("return await ({expression})");
        self.ask("/execute/sync", json!({ "script": script, "args": [] }))
    }

    /// What an expression comes to, which is a text.
    #[track_caller]
    pub fn text(&self, expression: &str) -> String {
        let value = self.value(expression);
        let text = value.as_str();
        text.unwrap_or_else(|| panic!("{expression} is {value}"))
            .to_owned()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub fn until(&self, expression: &str) {
        let end = Instant::now() + WAIT;
        while self.value(expression) != true {
            if Instant::now() >= end {
                let shown = self.text("document.body.innerText");
                panic!("waited {WAIT:?} in vain: {expression}\n{shown}");
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Presses the first element of a CSS selector, as a finger does.
    #[track_caller]
    pub fn press(&self, selector: &str) {
        let place = json!({ "using": "css selector", "value": selector });
        let element = self.ask("/element", place);
        let mut names = element.as_object().into_iter().flat_map(|one| one.values());
        let name = names.next().and_then(Value::as_str).expect("an element");
        self.ask(&format!("/element/{name}/click"), json!({}));
    }

    /// Makes the page so wide, as a phone or a window would.
    pub fn width(&self, width: u32) {
        let screen = json!({
            "width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500,
        });
        self.devtools("Emulation.setDeviceMetricsOverride", screen);
    }

    /// `light` or `dark`.
    pub fn scheme(&self, scheme: &str) {
        let wish = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.devtools("Emulation.setEmulatedMedia", wish);
    }

    /// Every address that was asked for since the last call, except what is in the page itself, and
    /// in the browser's own page that it starts with.
    pub fn requested(&self) -> Vec<String> {
        let mut requested = Vec::new();
        for line in self.log("performance") {
            let line = line["message"].as_str().expect("a text");
            let line: Value = serde_json::from_str(line).expect("JSON in JSON");
            let message = &line["message"];
            if message["method"] == "Network.requestWillBeSent" {
                let url = message["params"]["request"]["url"].as_str();
                requested.extend(url.map(str::to_owned));
            }
        }
        let inside = |url: &str| url.starts_with("data:") || url.starts_with("chrome:");
        requested.retain(|url| !inside(url));
        requested
    }

    /// What the console said since the last call.
    pub fn console(&self) -> Vec<Value> {
        self.log("browser")
    }

    fn log(&self, kind: &str) -> Vec<Value> {
        let said = self.ask("/se/log", json!({ "type": kind }));
        said.as_array().expect("a list").clone()
    }

    fn devtools(&self, command: &str, params: Value) {
        let call = json!({ "cmd": command, "params": params });
        self.ask("/goog/cdp/execute", call);
    }

    #[track_caller]
    fn ask(&self, path: &str, body: Value) -> Value {
        let path = format!("{}{path}", self.session);
        self.driver.ask("POST", &path, &body)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Chromium is the driver's child, and would outlive it.
        let _ = self.driver.try_ask("DELETE", &self.session, "");
    }
}

fn programs() -> Option<[PathBuf; 2]> {
    let path = std::env::var_os("PATH")?;
    let find = |name: &str| {
        let mut places = std::env::split_paths(&path).map(|folder| folder.join(name));
        places.find(|program| program.is_file())
    };
    Some([find("chromium")?, find("chromedriver")?])
}

/// The driver's process. It ends when this is dropped.
struct Driver {
    child: Child,
    address: SocketAddr,
}

impl Driver {
    fn start(program: PathBuf) -> Driver {
        let mut child = Command::new(program)
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the driver can be run");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let port = lines.find_map(|line| {
            let line = line.expect("text");
            let port = line.split(" successfully on port ").nth(1)?;
            port.trim_end_matches('.').parse::<u16>().ok()
        });
        // What else it says is of no use, and must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let port = port.expect("the driver names its port");
        Driver {
            child,
            address: (Ipv4Addr::LOCALHOST, port).into(),
        }
    }

    #[track_caller]
    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.try_ask(method, path, &body.to_string());
        let mut answer = answer.unwrap_or_else(|error| panic!("{method} {path} {body}: {error}"));
        let value = answer["value"].take();
        assert!(value["error"].is_null(), "{path} {body}: {value:#}");
        value
    }

    fn try_ask(&self, method: &str, path: &str, body: &str) -> std::io::Result<Value> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(2 * WAIT))?;
        let (address, length) = (self.address, body.len());
        write!(
            &stream,
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {length}\r\n\r\n{body}"
        )?;
        // The connection may stay open: the length counts.
        let mut reader = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            if line.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().map_err(std::io::Error::other)?;
            }
        }
        let mut answer = vec![0; length];
        reader.read_exact(&mut answer)?;
        Ok(serde_json::from_slice(&answer)?)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
