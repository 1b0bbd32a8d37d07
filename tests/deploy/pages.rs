//! The pages: every link leads to a file that is there and to a heading in it, and every alert has
//! its section.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::{document, file, files, path};

fn pages() -> Vec<String> {
    let mut names = vec!["README.md".to_owned()];
    for folder in ["docs", "deploy", "perf"] {
        names.extend(
            files(folder)
                .into_iter()
                .filter(|name| name.ends_with(".md")),
        );
    }
    names
}

/// The lines outside of code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

/// The headings of a page as the ends of links to them: lower case, letters, digits, `-` and `_`,
/// spaces as `-`, and a number where one comes again.
pub fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for line in prose(text).filter(|line| line.starts_with('#')) {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let letters = title.chars().filter_map(|letter| match letter {
            ' ' => Some('-'),
            '-' | '_' => Some(letter),
            letter if letter.is_alphanumeric() => Some(letter),
            _ => None,
        });
        let anchor: String = letters.collect();
        let again = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone())
            .chain(again)
            .find(|one| !anchors.contains(one));
        anchors.extend(free);
    }
    anchors
}

/// What stands in `](…)`, images included.
fn links(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    for line in prose(text) {
        for part in line.split("](").skip(1) {
            links.extend(part.split(')').next().map(str::to_owned));
        }
    }
    links
}

/// A path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut plain, part| {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
        plain
    })
}

#[track_caller]
fn check_link(page: &str, link: &str) {
    let (target, anchor) = link.split_once('#').unwrap_or((link, ""));
    let name = match target {
        "" => PathBuf::from(page),
        target => plain(&Path::new(page).parent().expect("a folder").join(target)),
    };
    assert!(
        path(name.to_str().expect("UTF-8")).exists(),
        "{page}: {link}: no {}",
        name.display()
    );
    if !anchor.is_empty() {
        let anchors = anchors(&file(name.to_str().expect("UTF-8")));
        assert!(
            anchors.contains(anchor),
            "{page}: {link}: no such heading in {anchors:#?}"
        );
    }
}

#[test]
fn every_link_leads_somewhere() {
    let mut checked = 0;
    for page in pages() {
        for link in links(&file(&page)) {
            if !link.contains("://") && !link.starts_with("mailto:") {
                check_link(&page, &link);
                checked += 1;
            }
        }
    }
    assert!(checked > 50, "{checked}");
}

#[test]
fn every_alert_has_its_section() {
    let rules = document("deploy/prometheus/alerts.yml");
    for group in rules["groups"].as_array().expect("groups") {
        for rule in group["rules"].as_array().expect("rules") {
            let name = rule["alert"].as_str().expect("a name");
            let runbook = rule["annotations"]["runbook_url"].as_str();
            let runbook = runbook.unwrap_or_else(|| panic!("{name} has no runbook"));
            check_link("deploy/prometheus/alerts.yml", &format!("../../{runbook}"));
            assert!(
                runbook.ends_with(&format!("#{}", name.to_lowercase())),
                "{name}"
            );
            let severity = rule["labels"]["severity"].as_str();
            assert!(
                matches!(severity, Some("page" | "ticket" | "info")),
                "{name}"
            );
            // Its section says the same.
            let section = section(&file("docs/alerts.md"), name);
            let said = format!("`{}`.", severity.expect("a word"));
            assert!(section.trim_start().starts_with(&said), "{name}: {section}");
        }
    }
}

fn section(page: &str, title: &str) -> String {
    let rest = page
        .split_once(&format!("### {title}\n"))
        .expect("a section")
        .1;
    rest.split("\n#")
        .next()
        .expect("one part at least")
        .to_owned()
}

#[test]
fn the_dashboard_s_hints_lead_somewhere() {
    let board: Value = serde_json::from_str(&file("deploy/grafana/buzz-uring.json")).expect("JSON");
    let mut checked = 0;
    for panel in board["panels"].as_array().expect("panels") {
        let hint = panel["description"].as_str().unwrap_or_default();
        for link in hint
            .split_whitespace()
            .filter(|word| word.starts_with("docs/"))
        {
            check_link("README.md", link.trim_end_matches(['.', ',']));
            checked += 1;
        }
    }
    assert!(checked > 5, "{checked}");
}

#[test]
fn headings_become_anchors_as_on_the_forges() {
    let text =
        "# The `io_uring` — or: epoll?\n```\n# no heading\n```\n## A\n## A\n### Two  spaces\n";
    let expected = ["the-io_uring--or-epoll", "a", "a-1", "two--spaces"];
    assert_eq!(anchors(text), expected.map(str::to_owned).into());
}
