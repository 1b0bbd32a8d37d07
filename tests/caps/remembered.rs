//! Remembered caps: what was in force last, for a start during an outage.

use std::path::Path;

use serde_json::{Value, json};

use crate::common::{Launch, Relay, until};
use crate::launchdarkly::Fake;
use crate::support::{
    AUTH, AUTH_FLAG, HISTORY, HISTORY_FLAG, changes, end_quietly, gauges, of_launchdarkly,
    refreshes, status_of,
};

const FILE: &str = "remembered-caps.json";
const AGE: &str = "buzz_concurrency_remembered_age_seconds";

fn remembering(fake: &Fake) -> Launch {
    of_launchdarkly(fake).set("BUZZ_REMEMBER_CAPS", "true")
}

fn ready(relay: &Relay) -> Option<f64> {
    relay.metric("buzz_feature_flags_ready", &[])
}

/// Limit and source, of history and of auth.
fn caps(relay: &Relay) -> [(u32, String); 2] {
    [HISTORY, AUTH].map(|gate| {
        let source = status_of(relay, gate)["source"]
            .as_str()
            .unwrap()
            .to_owned();
        (gauges(relay, gate).limit, source)
    })
}

fn pairs(history: (u32, &str), auth: (u32, &str)) -> [(u32, String); 2] {
    [history, auth].map(|(limit, source)| (limit, source.to_owned()))
}

fn saved(folder: &Path) -> Option<Value> {
    let text = std::fs::read_to_string(folder.join(FILE)).ok()?;
    serde_json::from_str(&text).ok()
}

#[test]
fn a_start_during_an_outage_has_the_last_caps_until_it_is_given_others() {
    let mut fake = Fake::start(&[(AUTH_FLAG, json!(3)), (HISTORY_FLAG, json!(5))]);
    let launch = remembering(&fake);
    let relay = launch.start();
    let folder = relay.data_dir();
    assert_eq!(
        caps(&relay),
        pairs((5, "launchdarkly"), (3, "launchdarkly"))
    );
    until("the caps are saved", || {
        saved(&folder).filter(|saved| saved["auth"] == 3)
    });
    end_quietly(relay, &launch, &fake);

    fake.refuse();
    let relay = launch.start();
    assert_eq!(caps(&relay), pairs((5, "remembered"), (3, "remembered")));
    assert_eq!(ready(&relay), Some(0.0));
    assert_eq!(relay.status()["feature_flags"]["ready"], false);
    for gate in [HISTORY, AUTH] {
        let age = relay.metric(AGE, &[gate]).expect("an age for each gate");
        assert!(age < 120.0, "{gate}: {age}");
        assert!(status_of(&relay, gate)["remembered_age_seconds"].is_u64());
    }
    let sources: Vec<String> = changes(&relay)
        .into_iter()
        .map(|[.., source]| source)
        .collect();
    assert_eq!(sources, ["remembered"; 2]);
    // They stay, grow older, and are not saved again: what is only remembered must not stay young.
    let age = relay.metric(AGE, &["auth"]);
    let file = saved(&folder);
    refreshes(&relay, 2);
    assert_eq!(caps(&relay), pairs((5, "remembered"), (3, "remembered")));
    assert!(relay.metric(AGE, &["auth"]) > age);
    assert_eq!(saved(&folder), file);

    // Whatever is delivered replaces them, 0 included, and a flag that is not there at all.
    fake.set(AUTH_FLAG, json!(0));
    fake.set(HISTORY_FLAG, json!(8));
    fake.listen();
    relay.await_metric("buzz_concurrency_limit", &["history_reads"], |limit| {
        limit == 8.0
    });
    assert_eq!(
        caps(&relay),
        pairs((8, "launchdarkly"), (0, "launchdarkly"))
    );
    assert_eq!(ready(&relay), Some(1.0));
    assert!(status_of(&relay, AUTH)["remembered_age_seconds"].is_null());
    until("the new caps are saved", || {
        saved(&folder).filter(|saved| saved["history_reads"] == 8)
    });
    end_quietly(relay, &launch, &fake);
}

#[test]
fn too_old_or_not_asked_for_they_are_the_ceilings() {
    let mut fake = Fake::start(&[]);
    fake.refuse();
    let launch = remembering(&fake);
    let folder = launch.data_dir();
    std::fs::create_dir_all(&folder).unwrap();
    let save = |age: u64| {
        let at = crate::common::now() - age;
        let caps = json!({"saved_at_seconds": at, "history_reads": 5, "auth": 3});
        std::fs::write(folder.join(FILE), caps.to_string()).unwrap();
    };
    let day = 24 * 3_600;
    save(day + 10);
    let relay = launch.start();
    assert_eq!(caps(&relay), pairs((40, "default"), (0, "default")));
    relay.stop().expect(0, &[]);

    save(10);
    let relay = launch.clone().unset("BUZZ_REMEMBER_CAPS").start();
    assert_eq!(caps(&relay), pairs((40, "default"), (0, "default")));
    assert_eq!(relay.metric(AGE, &[]), None);
    relay.stop().expect(0, &[]);

    // They end while the process runs as well.
    save(day - 8);
    let relay = launch.start();
    assert_eq!(caps(&relay), pairs((5, "remembered"), (3, "remembered")));
    relay.await_metric("buzz_concurrency_limit", &["history_reads"], |limit| {
        limit == 40.0
    });
    assert_eq!(caps(&relay), pairs((40, "default"), (0, "default")));
    let [.., last] = changes(&relay).pop().expect("a line for the change");
    assert_eq!(last, "default");
    end_quietly(relay, &launch, &fake);
}
