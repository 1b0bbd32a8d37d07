//! Caps that move under work in flight, by LaunchDarkly, seen through the metrics.

use serde_json::json;

use crate::common::{Author, Relay};
use crate::launchdarkly::Fake;
use crate::support::{
    AUTH, AUTH_FLAG, HISTORY, HISTORY_FLAG, Hooks, SHED, Said, Visitor, agree, await_gauges,
    changes, end_quietly, hooked, of_launchdarkly,
};

const HOLD: [(&str, &str); 2] = [("access_ms", "60000"), ("history_ms", "60000")];

/// One read and one login, which wait or are admitted.
struct Pair {
    reader: Visitor,
    login: Visitor,
}

impl Pair {
    fn begin(relay: &Relay, number: u64) -> Pair {
        let mut reader = Visitor::arrive(relay.address);
        reader.send("[\"REQ\",\"all\",{}]");
        let mut login = Visitor::arrive(relay.address);
        login.ask(&Author::new(number));
        Pair { reader, login }
    }

    fn must_be_shed(mut self) {
        self.reader
            .expect(&json!(["CLOSED", "all", SHED]).to_string());
        assert_eq!(self.login.answer(), Said::BareClose);
    }

    fn must_be_served(mut self) {
        self.reader.expect("[\"EOSE\",\"all\",[\"finish\"]]");
        assert_eq!(self.login.answer(), Said::In);
    }
}

#[test]
fn lower_below_the_work_in_flight_raise_again_and_restore_the_ceiling() {
    let fake = Fake::start(&[]);
    let hooks = Hooks::new(&HOLD);
    // A pool of 10 leaves 8 to history.
    let launch = hooked(of_launchdarkly(&fake), &hooks).set("BUZZ_DB_READ_POOL_SIZE", "10");
    let relay = launch.start();
    let both = |history: i64, auth: i64| {
        fake.set(HISTORY_FLAG, json!(history));
        fake.set(AUTH_FLAG, json!(auth));
    };
    let expect = |history: [u32; 4], auth: [u32; 4]| {
        await_gauges(&relay, HISTORY, history);
        await_gauges(&relay, AUTH, auth);
    };
    let mut admitted: Vec<Pair> = (0..5).map(|n| Pair::begin(&relay, n)).collect();
    expect([8, 5, 0, 0], [0, 5, 0, 0]);

    // Lower below the work in flight: none of it is cancelled, and nothing new enters.
    both(3, 2);
    expect([3, 5, 0, 2], [2, 5, 0, 3]);
    let waits = Pair::begin(&relay, 10);
    expect([3, 5, 1, 2], [2, 5, 1, 3]);
    waits.must_be_shed();
    expect([3, 5, 0, 2], [2, 5, 0, 3]);

    // Raise before the holders leave, and not past them: the debt is paid first.
    both(4, 4);
    expect([4, 5, 0, 1], [4, 5, 0, 1]);
    Pair::begin(&relay, 11).must_be_shed();

    // Raise past them: what is new enters.
    both(6, 6);
    expect([6, 5, 0, 0], [6, 5, 0, 0]);
    admitted.push(Pair::begin(&relay, 12));
    expect([6, 6, 0, 0], [6, 6, 0, 0]);

    // Restore the ceilings: 8 for history, none for logins. 0 and less do, and so does too much.
    both(0, -1);
    expect([8, 6, 0, 0], [0, 6, 0, 0]);
    admitted.push(Pair::begin(&relay, 13));
    expect([8, 7, 0, 0], [0, 7, 0, 0]);
    both(2, 2);
    expect([2, 7, 0, 5], [2, 7, 0, 5]);
    both(99, 0);
    expect([8, 7, 0, 0], [0, 7, 0, 0]);

    // Lower once more, and let the holders leave: the lowered gate is exact again.
    both(2, 2);
    expect([2, 7, 0, 5], [2, 7, 0, 5]);
    hooks.clear();
    for pair in admitted {
        pair.must_be_served();
    }
    expect([2, 0, 0, 0], [2, 0, 0, 0]);
    hooks.set(&HOLD);
    let again: Vec<Pair> = (20..22).map(|n| Pair::begin(&relay, n)).collect();
    expect([2, 2, 0, 0], [2, 2, 0, 0]);
    Pair::begin(&relay, 22).must_be_shed();
    hooks.clear();
    for pair in again {
        pair.must_be_served();
    }
    agree(&relay);

    // One line for each change, and none for what stayed.
    let of = |gate: &str| -> Vec<[String; 2]> {
        changes(&relay)
            .into_iter()
            .filter(|[of, ..]| of == gate)
            .map(|[_, old, new, ..]| [old, new])
            .collect()
    };
    let history = ["8", "3", "4", "6", "8", "2", "8", "2"];
    let auth = ["none", "2", "4", "6", "none", "2", "none", "2"];
    for (gate, values) in [(HISTORY, history), (AUTH, auth)] {
        let steps: Vec<[&str; 2]> = values.windows(2).map(|two| [two[0], two[1]]).collect();
        assert_eq!(of(gate), steps, "{gate}");
    }
    end_quietly(relay, &launch, &fake);
}
