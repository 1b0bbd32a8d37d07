//! Rows of an answer, on their way between threads.

/// An event as it is answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Row<'a> {
    /// Its JSON.
    pub json: &'a str,
    /// When it expires, in seconds since 1970 (NIP-40). `None`: never.
    pub expires: Option<u64>,
}

/// Events in their order, in one piece of memory.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    text: String,
    /// Of each, where it ends in `text`, and when it expires.
    ends: Vec<(usize, Option<u64>)>,
}

impl Rows {
    /// Adds an event.
    pub fn push(&mut self, row: Row<'_>) {
        self.text.push_str(row.json);
        self.ends.push((self.text.len(), row.expires));
    }

    /// Each event.
    pub fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|(end, _)| *end));
        starts.zip(&self.ends).map(|(start, (end, expires))| Row {
            json: &self.text[start..*end],
            expires: *expires,
        })
    }

    /// Their number.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Their bytes.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }
}
