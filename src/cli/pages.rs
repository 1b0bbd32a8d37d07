//! What is made of the table of settings and the subcommands: a shell's completions, and the manual
//! page.

use std::io::{self, Write};

use clap::builder::StyledStr;
use clap::{Arg, ArgMatches};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::commands::{NAME, shown as shown_command};
use super::settings::SETTINGS;
use crate::version::FULL;

/// The page that these arguments ask for, if they do.
pub(super) fn asked(matches: &ArgMatches) -> Option<String> {
    match matches.subcommand()? {
        (COMPLETIONS, matches) => {
            let shell = matches.get_one(SHELL).expect("clap demands a shell");
            Some(completions(*shell))
        }
        (MANUAL, _) => Some(manual()),
        _ => None,
    }
}

pub(super) fn completions_command() -> clap::Command {
    clap::Command::new(COMPLETIONS)
        .about("Print what makes a shell complete subcommands and options")
        .arg(
            Arg::new(SHELL)
                .help("The shell")
                .value_parser(clap::value_parser!(Shell))
                .required(true),
        )
}

pub(super) fn manual_command() -> clap::Command {
    clap::Command::new(MANUAL).about("Print the manual page, for man")
}

const COMPLETIONS: &str = "completions";
const SHELL: &str = "SHELL";
const MANUAL: &str = "man";

fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown_command(), NAME, &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    if shell != Shell::Bash {
        return script;
    }
    // The generator takes the hyphen in our name for the one before a subcommand in one of the two
    // places that must agree, and nothing below the first word is completed.
    script.replace("buzz__subcmd__uring__subcmd__", "buzz__uring__subcmd__")
}

fn manual() -> String {
    let man = Man::new(shown_command()).source(FULL).manual("Nostr relay");
    let mut page = Vec::new();
    let mut add = |render: fn(&Man, &mut dyn Write) -> io::Result<()>| {
        render(&man, &mut page).expect("memory takes everything");
    };
    add(Man::render_title);
    add(Man::render_name_section);
    add(Man::render_synopsis_section);
    add(Man::render_description_section);
    add(Man::render_options_section);
    add(|_, page| {
        let mut commands = Roff::new();
        commands.control("SH", ["COMMANDS"]);
        let mut command = shown_command();
        // Only then an argument knows how it is written.
        command.build();
        describe(&mut commands, NAME, &command);
        commands.to_writer(page)
    });
    add(Man::render_extra_section);
    String::from_utf8_lossy(&page).into_owned()
}

/// What stands under the subcommands of a command, and under theirs. The library refers to a page for
/// each of them; they are short, and one page is found more easily.
fn describe(roff: &mut Roff, parent: &str, command: &clap::Command) {
    for command in command.get_subcommands() {
        let name = format!("{parent} {}", command.get_name());
        let own = |argument: &&Arg| !argument.is_global_set() && argument.get_id() != "help";
        roff.control("SS", [name.as_str()]);
        roff.text([roman(shown(command.get_about()))]);
        for argument in command.get_arguments().filter(own) {
            roff.control("TP", []);
            roff.text([bold(argument.to_string())]);
            roff.text([roman(shown(argument.get_help()))]);
        }
        let settings = command.get_arguments().filter(|one| one.is_global_set());
        let settings = settings.filter_map(|one| Some(format!("--{}", one.get_long()?)));
        let settings: Vec<String> = settings.collect();
        // All of them stand above already.
        if !settings.is_empty() && settings.len() < SETTINGS.len() / 2 {
            roff.control("PP", []);
            roff.text([roman(format!("Heeds {}.", settings.join(", ")))]);
        }
        for line in shown(command.get_after_help()).lines() {
            roff.control("PP", []);
            roff.text([roman(line)]);
        }
        describe(roff, &name, command);
    }
}

fn shown(text: Option<&StyledStr>) -> String {
    text.map(ToString::to_string).unwrap_or_default()
}
