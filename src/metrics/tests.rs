use super::*;

fn lines(text: &str, series: &str) -> Vec<String> {
    let of = |line: &&str| line.split(['{', ' ']).next() == Some(series);
    text.lines().filter(of).map(str::to_owned).collect()
}

#[test]
fn names_follow_their_kind() {
    for series in SERIES {
        let name = series.name;
        assert!(
            name.starts_with("buzz_") && !series.help.is_empty(),
            "{name}"
        );
        assert_eq!(
            name.ends_with("_total"),
            series.kind == Kind::Counter,
            "{name}"
        );
        if series.kind == Kind::Histogram {
            assert!(name.ends_with("_seconds"), "{name}");
        }
        assert_eq!(
            SERIES.iter().filter(|other| other.name == name).count(),
            1,
            "{name}"
        );
    }
}

#[test]
fn closed_series_exist_at_zero_from_start() {
    let text = recorded(|| ());
    for series in SERIES.iter().filter(|series| series.kind == Kind::Counter) {
        let shown = lines(&text, series.name);
        assert_eq!(
            shown.len(),
            combinations(series.labels).len(),
            "{}",
            series.name
        );
        assert!(shown.iter().all(|line| line.ends_with(" 0")), "{shown:?}");
    }
    let sheds = lines(&text, "buzz_concurrency_sheds_total");
    assert_eq!(sheds.len(), 2 * 3);
    assert!(
        sheds.contains(
            &"buzz_concurrency_sheds_total{gate=\"history_reads\",reason=\"full\"} 0".into()
        ),
        "{sheds:?}"
    );
    assert!(
        text.contains("buzz_concurrency_wait_seconds_count{gate=\"auth\"} 0"),
        "{text}"
    );
    assert!(text.contains("buzz_concurrency_hold_seconds_bucket{gate=\"auth\",le=\"0.01\"} 0"));
    assert!(text.contains("buzz_store_commit_seconds_sum 0"), "{text}");
    assert!(text.contains("# HELP buzz_concurrency_debt "), "{text}");
    assert_eq!(lines(&text, "buzz_auth_outcomes_total").len(), 10);
    // Only the chosen provider has a ready gauge.
    assert!(!text.contains("buzz_feature_flags_ready"), "{text}");
    assert!(!text.contains("remembered_age"), "{text}");
}

#[test]
fn a_shard_s_series_exist_once_it_has_its_handles() {
    let text = recorded(|| {
        let shard = ShardMetrics::new(3, Tally::for_ever());
        shard.connections.increment(2);
        shard.closes.of(CloseReason::TooBig).increment(1);
        shard.query_seconds.of(QueryKind::Count).record(0.2);
        ShardMetrics::new(4, Tally::for_ever())
            .auth_outcomes
            .of(AuthOutcome::Banned)
            .increment(1);
    });
    assert!(
        text.contains("buzz_ws_connections_total{shard=\"3\"} 2"),
        "{text}"
    );
    assert!(
        text.contains("buzz_ws_connections_total{shard=\"4\"} 0"),
        "{text}"
    );
    assert!(
        text.contains("buzz_drain_connections_remaining{shard=\"4\"} 0"),
        "{text}"
    );
    assert!(
        text.contains("buzz_ws_closes_total{reason=\"too_big\"} 1"),
        "{text}"
    );
    assert!(text.contains("buzz_query_seconds_bucket{kind=\"count\",le=\"0.25\"} 1"));
    assert!(text.contains("buzz_query_seconds_bucket{kind=\"count\",le=\"0.1\"} 0"));
    let banned = "buzz_auth_outcomes_total{method=\"nip42\",outcome=\"banned\"} 1";
    assert!(text.contains(banned), "{text}");
}

#[test]
fn a_gate_and_the_driver() {
    let text = recorded(|| {
        let gate = GateGauges::new(GateName::Auth);
        let admission = AdmissionMetrics::new(GateName::Auth, Tally::for_ever());
        gate.limit.set(4.0);
        admission.sheds.of(ShedReason::Timeout).increment(3);
        set_driver(Driver::Epoll);
    });
    assert!(
        text.contains("buzz_concurrency_limit{gate=\"auth\"} 4"),
        "{text}"
    );
    assert!(
        text.contains("sheds_total{gate=\"auth\",reason=\"timeout\"} 3"),
        "{text}"
    );
    assert!(
        text.contains("buzz_io_driver{driver=\"epoll\"} 1"),
        "{text}"
    );
    assert!(
        text.contains("buzz_io_driver{driver=\"io_uring\"} 0"),
        "{text}"
    );
}

#[test]
fn label_texts_are_unique() {
    fn check<L: Label>(all: &[L]) {
        assert_eq!(all.len(), L::TEXTS.len());
        let mut texts: Vec<_> = all.iter().map(|label| label.as_label()).collect();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), all.len(), "{}", L::NAME);
    }
    check(CloseReason::ALL);
    check(DropReason::ALL);
    check(AuthOutcome::ALL);
    check(UpgradeRefusal::ALL);
}
