//! Words for people: a number, and its noun in the right form.

/// A count and what is counted: `1 event`, `2 events`. `noun` is one that takes an s.
pub fn counted(count: u64, noun: &str) -> String {
    format!("{count} {}", self::noun(count, noun))
}

/// What is counted, in the form for so many, where the number is written in another way.
pub fn noun(count: u64, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{noun}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_one_and_all_else_are_many() {
        for (count, shown) in [(0, "0 events"), (1, "1 event"), (2, "2 events")] {
            assert_eq!(counted(count, "event"), shown);
        }
        assert_eq!(noun(10_000, "event"), "events");
    }
}
