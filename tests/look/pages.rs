//! What the program prints of itself: completions and the manual page.

use std::io::Write;
use std::process::{Command, Stdio};

use buzz_uring::cli::SETTINGS;
use buzz_uring::version::VERSION;

use crate::common::{Launch, skip};

fn printed(words: &[&str]) -> String {
    // Bad settings keep nobody from reading about them.
    let launch = Launch::new().set("BUZZ_SHARDS", "many");
    let exit = words
        .iter()
        .fold(launch, |launch, word| launch.arg(word))
        .run();
    exit.expect(0, &[]);
    exit.stdout
}

/// Gives a text to a program; `None` where there is none.
fn given(program: &str, arguments: &[&str], text: &str) -> Option<String> {
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = child.ok()?;
    let taken = child
        .stdin
        .take()
        .expect("piped")
        .write_all(text.as_bytes());
    let output = child.wait_with_output().expect("our own child");
    taken.expect("it reads everything");
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn every_shell_gets_what_it_completes() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = printed(&["completions", shell]);
        for word in ["check-config", "drain-jitter-ms", "completions", "wait"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let exit = Launch::new().arg("completions").arg("basic").run();
    exit.expect(64, &["possible values"]);
}

#[test]
fn bash_completes_by_it() {
    let script = printed(&["completions", "bash"]);
    // The function that it has given to the command, asked as the shell asks it.
    let ask = "\n\
        COMP_WORDS=(buzz-uring che) COMP_CWORD=1\n\
        name=$(complete -p buzz-uring | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n\
        $name buzz-uring che buzz-uring; echo \"${COMPREPLY[@]}\"\n\
        COMP_WORDS=(buzz-uring access un) COMP_CWORD=2\n\
        $name buzz-uring un access; echo \"${COMPREPLY[@]}\"\n\
        COMP_WORDS=(buzz-uring status --j) COMP_CWORD=2\n\
        $name buzz-uring --j status; echo \"${COMPREPLY[@]}\"\n";
    match given("bash", &[], &(script + ask)) {
        Some(completed) => assert_eq!(completed, "check-config\nunban unallow\n--json\n"),
        None => skip("completions in bash", "no bash here"),
    }
}

#[test]
fn the_manual_page_has_every_setting_and_command_and_is_sound() {
    let page = printed(&["man"]);
    assert!(page.contains(VERSION), "{page}");
    let plain = page.replace("\\-", "-").replace("\\&", "");
    for setting in SETTINGS {
        let shown = setting
            .option()
            .map_or(setting.variable.to_owned(), |option| format!("--{option}"));
        assert!(plain.contains(&shown), "{shown} is not in {plain}");
        assert!(plain.contains(setting.variable), "{}", setting.variable);
    }
    for command in [
        "check-config",
        "drain",
        "access",
        "health",
        "status",
        "top",
        "import",
        "migrate",
    ] {
        assert!(plain.contains(command), "{command}");
    }
    match given("groff", &["-man", "-Tascii", "-ww", "-b"], &page) {
        Some(text) => assert!(text.contains("DRAIN") || text.contains("drain"), "{text}"),
        None => skip("the manual page", "no groff here"),
    }
}

#[test]
fn who_has_seen_enough_may_close_the_pipe() {
    let mut command = Launch::new().arg("man").command();
    let mut child = command.spawn().expect("the binary can be run");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("our own child");
    assert!(output.status.success(), "{output:?}");
}
