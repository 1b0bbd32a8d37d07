//! The statements of reads: one text for each kind of runs, whatever the filter holds.
//!
//! ```text
//! c      candidates: of each run the next entries in the order of answers, at most $4
//! edge   where the first run that may have more was cut off: what lies beyond is not known
//! m      the candidates up to there that pass the sieve, in order, each once
//! r      those that are given: $13 rows at most, the last one without its JSON, and as many of them
//!        as fit $14 bytes, but at least one
//! ```
//!
//! Candidates are keys without their JSON, which is fetched at the end by where its row lies: within one
//! statement, and rows never change, that is exact.
//!
//! So a statement reads a bounded number of rows, whatever is stored, and gives a piece of the exact
//! answer: from where it began to the last row given, or to the edge. The next one goes on from there.
//! `head` comes along from the same snapshot: it is the watermark.

use std::sync::LazyLock;

use super::plan::Runs;

/// One kind of statement over all kinds of runs.
#[derive(Debug)]
pub struct Texts {
    ids: String,
    time: String,
    kinds: String,
    authors: String,
    pairs: String,
    tags: String,
}

/// Gives rows.
pub static READ: LazyLock<Texts> = LazyLock::new(|| Texts::of(READ_TAIL));
/// Counts them.
pub static COUNT: LazyLock<Texts> = LazyLock::new(|| Texts::of(COUNT_TAIL));

impl Texts {
    /// The statement for these runs.
    pub fn for_runs(&'static self, runs: &Runs) -> &'static str {
        match runs {
            Runs::Ids(_) => &self.ids,
            Runs::Time => &self.time,
            Runs::Kinds(_) => &self.kinds,
            Runs::Authors(_) => &self.authors,
            Runs::Pairs(..) => &self.pairs,
            Runs::Tags(_) => &self.tags,
        }
    }

    fn of(tail: &str) -> Texts {
        let columns = "seq, age, half, kind, pubkey, expires, tags, events.ctid AS tid";
        let text = |candidates: String| format!("WITH c AS MATERIALIZED ({candidates}), {tail}");
        let run = |join: &str, wanted: &str| {
            let lateral = format!(
                "SELECT r.run, e.* FROM {join} CROSS JOIN LATERAL (
                    SELECT row_number() OVER (ORDER BY age, half) AS place, {columns}
                    FROM buzz.events
                    WHERE {wanted} AND (age, half) > ($1::bigint, $2::uuid) AND age <= $3::bigint
                    ORDER BY age, half LIMIT $4::bigint) AS e"
            );
            text(lateral)
        };
        Texts {
            ids: text(format!(
                "SELECT 1::bigint AS run, least(0, $4::bigint) AS place, {columns}
                 FROM unnest($15::bytea[]) AS r(wanted) JOIN buzz.events ON id = r.wanted
                 WHERE (age, half) > ($1::bigint, $2::uuid) AND age <= $3::bigint"
            )),
            time: text(format!(
                "SELECT 1::bigint AS run, row_number() OVER (ORDER BY age, half) AS place, {columns}
                 FROM buzz.events
                 WHERE (age, half) > ($1::bigint, $2::uuid) AND age <= $3::bigint
                 ORDER BY age, half LIMIT $4::bigint"
            )),
            kinds: run(
                "unnest($15::integer[]) WITH ORDINALITY AS r(kind, run)",
                "kind = r.kind",
            ),
            authors: run(
                "unnest($15::bytea[]) WITH ORDINALITY AS r(pubkey, run)",
                "pubkey = r.pubkey",
            ),
            pairs: run(
                "unnest($15::bytea[], $16::integer[]) WITH ORDINALITY AS r(pubkey, kind, run)",
                "pubkey = r.pubkey AND kind = r.kind",
            ),
            // A tag's entry knows its kind: what fails there needs no look at its event.
            tags: text(format!(
                "SELECT t.run, t.place, e.seq, t.age, t.half, e.kind, e.pubkey, e.expires, e.tags,
                        e.tid
                 FROM (
                    SELECT r.run, e.* FROM unnest($15::uuid[]) WITH ORDINALITY AS r(tag, run)
                    CROSS JOIN LATERAL (
                        SELECT row_number() OVER (ORDER BY age, half) AS place, seq, age, half, kind
                        FROM buzz.tags
                        WHERE tag = r.tag AND (age, half) > ($1::bigint, $2::uuid)
                              AND age <= $3::bigint
                        ORDER BY age, half LIMIT $4::bigint) AS e) AS t
                 LEFT JOIN LATERAL (
                    SELECT {columns} FROM buzz.events
                    WHERE seq = t.seq AND ($7::integer[] IS NULL OR t.kind = ANY ($7))
                    LIMIT 1) AS e ON true"
            )),
        }
    }
}

/// What both kinds have after the candidates. `$1 $2` the place before, `$3` the highest age, `$4`
/// entries a run, `$5` the watermark or NULL, `$6` the time by which events expire or 0, `$7` kinds,
/// `$8` authors, `$9 $10` tags and their groups, `$11` whether what is sealed is for `$12` only.
macro_rules! sieve {
    () => {
        "edge AS MATERIALIZED (
    SELECT age, half FROM c WHERE place = $4::bigint ORDER BY age, half LIMIT 1
), groups AS MATERIALIZED (
    SELECT array_agg(tag) AS any_of FROM unnest($9::uuid[], $10::integer[]) AS g(tag, part)
    GROUP BY part
), m AS (
    SELECT DISTINCT ON (age, half, seq) seq, age, half, pubkey, expires, c.tid FROM c
    WHERE seq IS NOT NULL
      AND coalesce((age, half) <= (SELECT edge.age, edge.half FROM edge), true)
      AND ($5::bigint IS NULL OR seq <= $5)
      AND ($6::bigint = 0 OR expires IS NULL OR expires > $6)
      AND ($7::integer[] IS NULL OR kind = ANY ($7))
      AND ($8::bytea[] IS NULL OR pubkey IN (SELECT unnest($8)))
      AND NOT EXISTS (SELECT 1 FROM groups WHERE NOT c.tags && groups.any_of)
      AND (NOT $11::boolean OR kind NOT IN (1059, 21059) OR tags && $12::uuid[])
    ORDER BY age, half, seq"
    };
}

const READ_TAIL: &str = concat!(
    sieve!(),
    "
    LIMIT $13::bigint
), r AS (
    SELECT m.seq, m.age, m.half, m.expires, e.json, row_number() OVER w AS place,
           sum(octet_length(e.json)) OVER w AS bytes
    FROM m JOIN buzz.events e ON e.ctid = m.tid WINDOW w AS (ORDER BY m.age, m.half, m.seq)
)
SELECT (SELECT seq FROM buzz.head), edge.age, edge.half, r.seq, r.age, r.half,
       CASE WHEN r.place < $13 AND (r.place = 1 OR r.bytes <= $14::bigint) THEN r.json END,
       r.expires
FROM (SELECT 1) AS one LEFT JOIN edge ON true LEFT JOIN r ON true
ORDER BY r.age, r.half, r.seq"
);

/// `$13` whether the authors are wanted.
const COUNT_TAIL: &str = concat!(
    sieve!(),
    "
)
SELECT (SELECT seq FROM buzz.head), edge.age, edge.half, (SELECT count(*) FROM m),
       CASE WHEN $13::boolean THEN (SELECT array_agg(DISTINCT pubkey) FROM m) END,
       $14::bigint
FROM (SELECT 1) AS one LEFT JOIN edge ON true"
);
