//! What a line may be, and what is said of one that may not.

use crate::common::{Author, Launch, now};
use crate::{exported, import, lines, notes};

/// A line and what is said of it.
fn bad_lines(author: &Author) -> Vec<(Vec<u8>, &'static str)> {
    let good = author.json::<&str>(now(), 1, &[], "good");
    let end = good.len() - 4;
    let forged = if good.ends_with("00\"}") { "01" } else { "00" };
    let text = |text: &str| text.as_bytes().to_vec();
    vec![
        (text("nonsense"), "invalid: event is not an object"),
        (text("{\"id\":"), "invalid: "),
        (
            text(&format!("{good} more")),
            "invalid: text after the event",
        ),
        (
            text(&good.replace("good", "evil")),
            "invalid: the id is not the hash of the event",
        ),
        (
            text(&format!("{}{forged}\"}}", &good[..end])),
            "invalid: the signature does not verify",
        ),
        (text(&"x".repeat(1_025)), "invalid: the line is too long"),
        (
            good.replace("good", "\u{e9}").into_bytes()[..]
                .iter()
                // Half of the letter.
                .filter(|byte| **byte != 0xa9)
                .copied()
                .collect(),
            "invalid: the line is not UTF-8",
        ),
        (
            text(&author.json::<&str>(now(), 20_001, &[], "")),
            "invalid: ephemeral events are not stored",
        ),
        (
            text(&author.json::<&str>(now(), 22_242, &[], "")),
            "invalid: events of this kind are for one peer and are not stored",
        ),
        (
            text(&author.json(now(), 1, &[&["expiration", "5"]], "")),
            "invalid: the event has expired",
        ),
    ]
}

#[test]
fn each_fault_is_told_with_its_line_and_the_others_are_stored() {
    for runs in [false, true] {
        let launch = Launch::new().set("BUZZ_MAX_FRAME_BYTES", 1_024);
        let relay = runs.then(|| launch.start());
        let bad = bad_lines(&Author::new(1));
        let good = notes(2, bad.len() as u64);
        let mut input = Vec::new();
        let mut expected = Vec::new();
        for (at, ((line, reason), good)) in bad.iter().zip(&good).enumerate() {
            input.extend_from_slice(line);
            input.push(b'\n');
            input.extend_from_slice(good.as_bytes());
            input.push(b'\n');
            expected.push((2 * at as u64 + 1, *reason));
        }
        let ran = import(&launch, &input).expect(1, &[]);
        ran.counts([good.len(), 0, 0, bad.len()]);
        let told = ran.told();
        assert_eq!(told.len(), expected.len(), "{ran:#?}");
        for (told, expected) in told.iter().zip(expected) {
            assert_eq!(told.0, expected.0, "{ran:#?}");
            assert!(told.1.starts_with(expected.1), "{told:?} for {expected:?}");
        }
        assert_eq!(exported(&launch, &[]), lines(&good), "runs: {runs}");
        drop(relay);
    }
}

#[test]
fn lines_end_as_they_like_and_blank_ones_count_only_as_lines() {
    let launch = Launch::new();
    let events = notes(1, 3);
    let [one, two, three] = &events[..] else {
        panic!("three")
    };
    let input = format!("\n{one}\r\n\r\n  \n{two}\nbad\r\n{three}");
    let ran = import(&launch, input).expect(1, &["a new store is made in"]);
    ran.counts([3, 0, 0, 1]);
    assert_eq!(ran.told(), [(6, "invalid: event is not an object")]);
    assert_eq!(exported(&launch, &[]), lines(&events));
}

#[test]
fn white_space_within_an_event_is_no_fault() {
    let launch = Launch::new();
    let event = &notes(1, 1)[0];
    let spaced = event.replace("\",\"", "\" ,\t\"").replace(':', ": ");
    import(&launch, format!(" {spaced} \n"))
        .expect(0, &[])
        .counts([1, 0, 0, 0]);
    assert_eq!(exported(&launch, &[]), lines(&[event]));
}

#[test]
fn an_input_without_a_line_and_one_that_ends_midway() {
    for runs in [false, true] {
        let launch = Launch::new();
        let relay = runs.then(|| launch.start());
        import(&launch, "").expect(0, &[]).counts([0; 4]);
        import(&launch, "\n\r\n \n").expect(0, &[]).counts([0; 4]);
        let events = notes(1, 2);
        let cut = format!("{}\n{}", events[0], &events[1][..200]);
        let ran = import(&launch, cut).expect(1, &["line 2: invalid: "]);
        ran.counts([1, 0, 0, 1]);
        drop(relay);
    }
}

#[test]
fn of_many_refused_lines_a_thousand_are_told_and_nothing_is_drawn() {
    let launch = Launch::new();
    let ran = import(&launch, "x\n".repeat(1_500)).expect(1, &["only counted"]);
    ran.counts([0, 0, 0, 1_500]);
    let told: Vec<u64> = ran.told().iter().map(|(line, _)| *line).collect();
    assert_eq!(told, (1..=1_000).collect::<Vec<u64>>());
    assert!(
        !ran.stderr.contains(['\x1b', '\r']),
        "a bar where there is no terminal"
    );
}
