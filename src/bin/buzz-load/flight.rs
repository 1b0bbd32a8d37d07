//! Requests in flight: which places are free, who waits for what since when.
//!
//! A run has lanes (connections), each with a window of places. An operation takes a due ticket of
//! the schedule and a free place; its answer gives the place back. Lanes take turns.

use std::collections::VecDeque;

use crate::net::ConnId;
use crate::report::{Fault, Faults, Latency};
use crate::schedule::{Nanos, Schedule, Ticket};

/// An operation that was begun.
#[derive(Clone, Copy, Debug)]
struct Flight {
    key: u64,
    due: Nanos,
    sent: Nanos,
}

#[derive(Clone, Debug)]
struct Lane {
    conn: ConnId,
    /// Whether it was opened, or failed to.
    arrived: bool,
    flights: Vec<Flight>,
}

/// The requests of one workload.
#[derive(Debug)]
pub struct Flights {
    schedule: Schedule,
    lanes: Vec<Lane>,
    window: usize,
    /// Free places, as the lanes that have them.
    free: VecDeque<u32>,
    /// Since when there is a free place.
    free_since: Nanos,
    in_flight: usize,
    /// From when an operation was due to its answer.
    pub latency: Latency,
    /// From when an operation was sent to its answer.
    pub service: Latency,
    /// How late sends were that nothing but the generator held up.
    pub late: Latency,
    /// Faults.
    pub faults: Faults,
    /// Answers since the start, or the last `reset`.
    pub answered: u64,
    first_at: Nanos,
    last_at: Nanos,
}

impl Flights {
    /// `lanes` connections with `window` places each, none of them usable before [`Flights::joined`].
    pub fn new(schedule: Schedule, lanes: usize, window: usize) -> Flights {
        let lane = Lane {
            conn: ConnId::NONE,
            arrived: false,
            flights: Vec::new(),
        };
        Flights {
            schedule,
            lanes: vec![lane; lanes],
            window,
            free: VecDeque::new(),
            free_since: 0,
            in_flight: 0,
            latency: Latency::new(),
            service: Latency::new(),
            late: Latency::new(),
            faults: Faults::default(),
            answered: 0,
            first_at: 0,
            last_at: 0,
        }
    }

    /// A lane's connection is ready for requests.
    pub fn joined(&mut self, lane: u32, conn: ConnId) {
        let lane = &mut self.lanes[lane as usize];
        (lane.conn, lane.arrived) = (conn, true);
    }

    /// Whether every lane was opened, or failed to.
    pub fn all_arrived(&self) -> bool {
        self.lanes.iter().all(|lane| lane.arrived)
    }

    /// The run begins: the places of all lanes that joined are free, lane after lane in each round.
    pub fn start(&mut self, now: Nanos) {
        self.free.clear();
        for _ in 0..self.window {
            for (lane, state) in self.lanes.iter().enumerate() {
                if state.conn != ConnId::NONE {
                    self.free.push_back(lane as u32);
                }
            }
        }
        (self.free_since, self.first_at, self.last_at) = (now, now, now);
    }

    /// Lanes that have a connection.
    pub fn usable(&self) -> usize {
        self.lanes
            .iter()
            .filter(|lane| lane.conn != ConnId::NONE)
            .count()
    }

    /// The next operation, if one is due and a place is free: its lane, connection and ticket.
    /// [`Flights::sent`] must follow.
    pub fn take(&mut self, now: Nanos) -> Option<(u32, ConnId, Ticket)> {
        loop {
            let lane = *self.free.front()?;
            let conn = self.lanes[lane as usize].conn;
            if conn == ConnId::NONE {
                // The lane is lost, and its places with it.
                self.free.pop_front();
                continue;
            }
            let ticket = self.schedule.take(now)?;
            self.free.pop_front();
            self.late
                .record(now.saturating_sub(ticket.due.max(self.free_since)));
            return Some((lane, conn, ticket));
        }
    }

    /// An operation was sent; `key` is what its answer will name.
    pub fn sent(&mut self, lane: u32, key: u64, ticket: Ticket, now: Nanos) {
        self.lanes[lane as usize].flights.push(Flight {
            key,
            due: ticket.due,
            sent: now,
        });
        self.in_flight += 1;
    }

    /// An answer came; false if nothing waits for it.
    pub fn answer(&mut self, lane: u32, key: u64, now: Nanos) -> bool {
        let flights = &mut self.lanes[lane as usize].flights;
        let Some(at) = flights.iter().position(|flight| flight.key == key) else {
            return false;
        };
        let flight = flights.swap_remove(at);
        self.in_flight -= 1;
        self.latency.record(now.saturating_sub(flight.due));
        self.service.record(now.saturating_sub(flight.sent));
        self.answered += 1;
        self.last_at = now;
        if self.free.is_empty() {
            self.free_since = now;
        }
        self.free.push_back(lane);
        true
    }

    /// A lane's connection is gone: what was in flight on it will not be answered.
    pub fn lost(&mut self, lane: u32, why: &str) {
        let state = &mut self.lanes[lane as usize];
        (state.conn, state.arrived) = (ConnId::NONE, true);
        self.in_flight -= state.flights.len();
        for _ in state.flights.drain(..) {
            self.faults
                .add(Fault::Unanswered, "the connection was lost");
        }
        self.faults.add(Fault::Connection, why);
    }

    /// When [`Flights::take`] may next give something by itself; none when only an answer can help.
    pub fn next_due(&self, now: Nanos) -> Option<Nanos> {
        if self.free.is_empty() {
            None
        } else {
            self.schedule.next_due(now)
        }
    }

    /// Whether all is done: nothing in flight, nothing to come (or no lane left to send it on).
    pub fn settled(&self, now: Nanos) -> bool {
        let more = self.schedule.next_due(now).is_some() || self.schedule.waiting(now) > 0;
        self.in_flight == 0 && (!more || self.usable() == 0)
    }

    /// Forgets what was measured so far; what is in flight will count.
    pub fn reset(&mut self, now: Nanos) {
        self.latency.clear();
        self.service.clear();
        self.late.clear();
        self.answered = 0;
        (self.first_at, self.last_at) = (now, now);
    }

    /// The run is over: what has no answer gets the latency that it has by now, and is a fault.
    /// So are operations that were due and never found a place.
    pub fn finish(&mut self, now: Nanos) {
        let flights: Vec<Flight> = self
            .lanes
            .iter_mut()
            .flat_map(|lane| lane.flights.drain(..))
            .collect();
        self.in_flight = 0;
        for flight in flights {
            self.latency.record(now.saturating_sub(flight.due));
            self.faults.add(Fault::Unanswered, "no answer in time");
        }
        while let Some(ticket) = self
            .schedule
            .next_due(now)
            .filter(|_| self.schedule.waiting(now) > 0)
        {
            if self.schedule.take(now).is_none() {
                break;
            }
            self.latency.record(now.saturating_sub(ticket));
            self.faults
                .add(Fault::Unanswered, "no place to send it from");
        }
    }

    /// From the start, or the last `reset`, to the last answer.
    pub fn seconds(&self) -> f64 {
        self.last_at.saturating_sub(self.first_at) as f64 / 1e9
    }

    /// Lanes.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// The latencies to report: those of the open loop's own only where there is one.
    pub fn latencies(&self) -> Vec<(&'static str, Latency)> {
        vec![
            ("latency", self.latency.clone()),
            ("service", self.service.clone()),
            ("late", self.late.clone()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Pace;

    const MS: Nanos = 1_000_000;

    fn flights(pace: Pace, count: u64, lanes: usize, window: usize) -> Flights {
        let mut flights = Flights::new(Schedule::new(pace, count, 1_000 * MS), lanes, window);
        for lane in 0..lanes as u32 {
            flights.joined(lane, ConnId::test(lane));
        }
        flights.start(0);
        flights
    }

    #[test]
    fn lanes_take_turns_and_the_window_holds() {
        let mut flights = flights(Pace::Closed, 100, 2, 2);
        let mut order = Vec::new();
        let mut key = 0;
        while let Some((lane, _, ticket)) = flights.take(0) {
            flights.sent(lane, key, ticket, 0);
            order.push(lane);
            key += 1;
        }
        assert_eq!(order, [0, 1, 0, 1]);
        assert!(!flights.answer(0, 1, MS), "key 1 is lane 1's");
        assert!(flights.answer(0, 2, MS));
        assert!(!flights.answer(0, 2, MS), "answered once");
        assert_eq!(flights.take(MS).map(|(lane, ..)| lane), Some(0));
        assert_eq!(flights.faults.total(), 0);
    }

    #[test]
    fn a_stall_counts_from_when_each_was_due() {
        let mut flights = flights(Pace::Open { rate: 1_000.0 }, 100, 1, 1);
        let (lane, _, ticket) = flights.take(0).unwrap();
        flights.sent(lane, 0, ticket, 0);
        assert!(flights.take(50 * MS).is_none(), "no place");
        assert_eq!(flights.next_due(50 * MS), None, "only an answer helps");
        assert!(flights.answer(0, 0, 50 * MS));
        for key in 1..=50 {
            let (lane, _, ticket) = flights.take(50 * MS).unwrap();
            flights.sent(lane, key, ticket, 50 * MS);
            assert!(flights.answer(0, key, 50 * MS));
        }
        assert!((flights.latency.micros_at(0.5) - 25_000.0).abs() < 1_100.0);
        assert!(
            flights.service.micros_at(0.5) < 1.0,
            "the service itself looks fine"
        );
        assert!(
            flights.late.micros_at(1.0) < 1.0,
            "and the generator was not at fault"
        );
    }

    #[test]
    fn the_generators_own_lateness_is_told_apart() {
        let mut flights = flights(Pace::Open { rate: 1_000.0 }, 100, 1, 1);
        assert!(flights.take(7 * MS).is_some());
        assert!(flights.late.micros_at(1.0) >= 6_990.0);
    }

    #[test]
    fn what_is_never_answered_is_a_fault_with_a_latency() {
        let mut flights = flights(Pace::Open { rate: 1_000.0 }, 10, 1, 1);
        let (lane, _, ticket) = flights.take(0).unwrap();
        flights.sent(lane, 0, ticket, 0);
        assert!(!flights.settled(100 * MS));
        flights.finish(100 * MS);
        assert_eq!(flights.faults.total(), 10, "one in flight, nine in line");
        assert_eq!(flights.latency.count(), 10);
        assert!(flights.latency.micros_at(0.0) >= 90_000.0);
    }

    #[test]
    fn a_lost_lane_is_left_out_and_without_lanes_all_is_settled() {
        let mut flights = flights(Pace::Closed, 100, 2, 1);
        let (lane, _, ticket) = flights.take(0).unwrap();
        flights.sent(lane, 0, ticket, 0);
        flights.lost(0, "gone");
        assert_eq!(flights.faults.total(), 2);
        let (lane, _, ticket) = flights.take(0).unwrap();
        assert_eq!(lane, 1);
        flights.sent(lane, 1, ticket, 0);
        assert!(flights.answer(1, 1, 1));
        assert!(!flights.settled(1));
        flights.lost(1, "gone");
        assert!(flights.take(1).is_none());
        assert!(flights.settled(1));
    }

    #[test]
    fn warm_up_is_forgotten() {
        let mut flights = flights(Pace::Closed, 2, 1, 1);
        for key in 0..2 {
            let (lane, _, ticket) = flights.take(key * MS).unwrap();
            flights.sent(lane, key, ticket, key * MS);
            assert!(flights.answer(0, key, (key + 1) * MS));
            if key == 0 {
                flights.reset(MS);
            }
        }
        assert_eq!((flights.answered, flights.latency.count()), (1, 1));
        assert!((flights.seconds() - 0.001).abs() < 1e-9);
        assert!(flights.settled(2 * MS));
    }
}
