//! What `buzz-uring top` shows, on a terminal of any size.
//!
//! What does not fit goes in this order: the charts become one line, the shards lose columns, then
//! stand side by side, and at last some of them are only counted.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, RenderDirection, Sparkline};

use super::figures::{count, counted_short, limit, rate, span};
use super::picture::{Change, Picture, Shard, Text};
use super::status;
use crate::limits::{HEARTBEAT_STALE, TOP_POINTS_MAX};

/// Everything that is shown.
#[derive(Debug)]
pub struct Screen {
    name: String,
    now: Option<(Picture, Instant)>,
    before: Option<(Picture, Instant)>,
    connections: VecDeque<u64>,
    events: VecDeque<u64>,
    queries: VecDeque<u64>,
    trouble: Option<(String, Instant, Duration)>,
}

impl Screen {
    /// Nothing yet, of the relay that is called so.
    pub fn new(name: String) -> Screen {
        Screen {
            name,
            now: None,
            before: None,
            connections: VecDeque::new(),
            events: VecDeque::new(),
            queries: VecDeque::new(),
            trouble: None,
        }
    }

    /// The relay has answered.
    pub fn saw(&mut self, picture: Picture, at: Instant) {
        self.before = self.now.replace((picture, at));
        self.trouble = None;
        let Some(change) = self.change() else { return };
        let connections = change.now().connections;
        let tenths = |rate: Option<f64>| rate.map(|rate| (rate * 10.0).round() as u64);
        let events = tenths(change.a_second(|picture| Some(picture.events())));
        let queries = tenths(change.a_second(|picture| Some(picture.queries())));
        add(&mut self.connections, Some(connections));
        // The first look tells no rate, and is no point.
        if self.before.is_some() {
            add(&mut self.events, events);
            add(&mut self.queries, queries);
        }
    }

    /// The relay has not answered, for this reason. What it said last stays.
    pub fn missed(&mut self, why: String, at: Instant) {
        let since = self.trouble.as_ref().map_or(at, |(_, since, _)| *since);
        self.trouble = Some((why, since, at.duration_since(since)));
        for points in [&mut self.connections, &mut self.events, &mut self.queries] {
            add(points, None);
        }
    }

    /// Draws all of it.
    pub fn draw(&self, frame: &mut Frame) {
        let Some(change) = self.change() else {
            let waits = Line::from(format!("waiting for {}", self.name));
            let trouble = self.trouble_line();
            let lines: Vec<Line> = std::iter::once(waits).chain(trouble).collect();
            return frame.render_widget(Paragraph::new(lines), frame.area());
        };
        let area = frame.area();
        let trouble = self.trouble_line();
        let gates = gates(&change, usize::from(area.width));
        let charts = match area.height {
            0..CHARTS_ROWS_MIN => 1,
            CHARTS_ROWS_MIN..40 => 5,
            _ => 9,
        };
        let foot = u16::from(area.height >= FOOT_ROWS_MIN);
        let rows = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(u16::from(trouble.is_some())),
            Constraint::Length(charts),
            Constraint::Min(0),
            Constraint::Length(gates.len() as u16),
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(foot),
        ]);
        let [
            head,
            trouble_row,
            chart_rows,
            shard_rows,
            gate_rows,
            store,
            drain,
            foot,
        ] = rows.areas(area);
        frame.render_widget(self.head(change.now()), head);
        if let Some(trouble) = trouble {
            frame.render_widget(trouble, trouble_row);
        }
        self.draw_charts(&change, frame, chart_rows);
        draw_shards(&change, frame, shard_rows);
        frame.render_widget(Paragraph::new(gates), gate_rows);
        frame.render_widget(labelled("store", status::store(&change)), store);
        frame.render_widget(drain_line(change.now()), drain);
        frame.render_widget(Line::from("q quits").dim(), foot);
    }

    fn change(&self) -> Option<Change<'_>> {
        let (now, at) = self.now.as_ref()?;
        let before = self.before.as_ref();
        let before = before.map(|(before, then)| (before, at.duration_since(*then)));
        Some(Change::new(now, before))
    }

    fn trouble_line(&self) -> Option<Line<'_>> {
        let (why, _, passed) = self.trouble.as_ref()?;
        let text = format!("{why}; trying again, for {} now", span(*passed));
        Some(Line::from(text).style(BAD))
    }

    fn head(&self, picture: &Picture) -> Line<'_> {
        let (stage, style) = match (self.trouble.is_some(), picture.is_ready()) {
            (true, _) => ("GONE".to_owned(), BAD),
            (false, true) => (picture.lifecycle.to_string(), GOOD),
            (false, false) => (picture.lifecycle.to_string(), WARNING),
        };
        let uptime = span(Duration::from_secs(picture.uptime_seconds));
        let rest = format!(
            "  {}  {} ({})  up {uptime}  {}",
            self.name, picture.version, picture.commit, picture.driver
        );
        Line::from(vec![Span::styled(stage, style.bold()), Span::raw(rest)])
    }

    fn draw_charts(&self, change: &Change, frame: &mut Frame, area: Rect) {
        let picture = change.now();
        let events = rate(change.a_second(|picture| Some(picture.events())));
        let queries = rate(change.a_second(|picture| Some(picture.queries())));
        let charts = [
            (
                counted_short(picture.connections, "connection"),
                &self.connections,
            ),
            (format!("{events} events/s"), &self.events),
            (format!("{queries} queries/s"), &self.queries),
        ];
        let columns = Layout::horizontal([Constraint::Fill(1); 3])
            .spacing(2)
            .split(area);
        for ((title, points), column) in charts.into_iter().zip(columns.iter()) {
            let [title_row, chart] =
                Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(*column);
            frame.render_widget(Line::from(title).bold(), title_row);
            // The newest to the right, whether there are many or few.
            let newest = points.iter().rev().take(usize::from(chart.width)).copied();
            let spark = Sparkline::default()
                .data(newest)
                .direction(RenderDirection::RightToLeft)
                .style(Style::new().fg(Color::Cyan));
            frame.render_widget(spark, chart);
        }
    }
}

/// Rows from which on there are charts, and a line at the foot.
const CHARTS_ROWS_MIN: u16 = 20;
const FOOT_ROWS_MIN: u16 = 16;

const GOOD: Style = Style::new().fg(Color::Green);
const WARNING: Style = Style::new().fg(Color::Yellow);
const BAD: Style = Style::new().fg(Color::Red);

/// Adds a point; without one the last stands for it as nothing.
fn add(points: &mut VecDeque<u64>, point: Option<u64>) {
    if points.len() >= TOP_POINTS_MAX {
        points.pop_front();
    }
    // Far above what is real, and far below what the chart's arithmetic bears.
    points.push_back(point.unwrap_or(0).min(u64::from(u32::MAX)));
}

fn labelled(label: &str, text: String) -> Line<'static> {
    Line::from(vec![
        Span::raw(format!("{label:6}")).bold(),
        Span::raw(text),
    ])
}

fn drain_line(picture: &Picture) -> Line<'static> {
    let drain = &picture.drain;
    let mut line = labelled("drain", String::new());
    if drain.state.as_str() != "none" && drain.connections > 0 {
        const CELLS: u64 = 10;
        let left = drain.sockets_remaining.min(drain.connections);
        let done = (drain.connections - left).saturating_mul(CELLS) / drain.connections;
        let done = done as usize;
        let bar = "#".repeat(done) + &".".repeat(CELLS as usize - done);
        line.push_span(Span::styled(format!("{bar} "), WARNING));
    }
    line.push_span(Span::raw(status::drain(picture)));
    line
}

/// A column of a table: its head, and how wide it is with the space before it.
type Column = (&'static str, usize);

const GATE_COLUMNS: &[Column] = &[
    ("gate", 13),
    ("limit", 6),
    ("in flight", 10),
    ("waiting", 8),
    ("debt", 5),
    ("sheds", 6),
    ("sheds/s", 8),
    ("ceiling", 9),
    ("source", 14),
];

/// As many columns as have room whole, and one at least.
fn fitting(columns: &[Column], width: usize) -> &[Column] {
    let mut left = width;
    let fit = columns.iter().take_while(|(_, width)| {
        let fits = *width <= left;
        left = left.saturating_sub(*width);
        fits
    });
    &columns[..fit.count().max(1)]
}

fn gates(change: &Change, width: usize) -> Vec<Line<'static>> {
    let columns = fitting(GATE_COLUMNS, width);
    let head = columns.iter().map(|(head, _)| (*head).to_owned());
    let head = Line::from(row(columns, &head.collect::<Vec<_>>())).bold();
    let of_gate = |(name, gate): (&Text, &super::picture::Gate)| {
        let shed = change.a_second(|picture| picture.gates.get(name).map(|gate| gate.shed()));
        let cells = [
            name.to_string(),
            limit(gate.limit),
            count(gate.in_flight),
            count(gate.waiting),
            count(gate.debt),
            count(gate.shed()),
            rate(shed),
            limit(gate.ceiling),
            gate.source.to_string(),
        ];
        let style = match (shed.is_some_and(|shed| shed > 0.0), gate.debt > 0) {
            (true, _) => BAD,
            (false, true) => WARNING,
            (false, false) => Style::new(),
        };
        Line::from(row(columns, &cells)).style(style)
    };
    std::iter::once(head)
        .chain(change.now().gates.iter().map(of_gate))
        .collect()
}

const SHARD_COLUMNS: &[Column] = &[
    ("shard", 5),
    ("connections", 12),
    ("events/s", 9),
    ("queries/s", 10),
    ("subs", 7),
    ("delivered/s", 12),
    ("queued", 10),
    ("silent", 8),
];
/// Columns that a shard has at least.
const SHARD_COLUMNS_MIN: usize = 4;
/// Between two shards that stand side by side.
const GAP: usize = 3;

/// How many columns each shard has, how many stand side by side, and how many there are room for.
#[derive(Debug, Eq, PartialEq)]
struct Grid {
    columns: usize,
    blocks: usize,
    shown: usize,
}

impl Grid {
    /// The most columns with which all shards have room. With too many for any, one place is for the
    /// number of those that are not shown.
    fn of(shards: usize, width: usize, rows: usize) -> Grid {
        let block = |columns: usize| -> usize {
            SHARD_COLUMNS[..columns]
                .iter()
                .map(|(_, width)| width)
                .sum()
        };
        let blocks = |columns| ((width + GAP) / (block(columns) + GAP)).max(1);
        let columns = (SHARD_COLUMNS_MIN..=SHARD_COLUMNS.len()).rev();
        let mut fitting = columns.filter(|columns| block(*columns) <= width);
        let columns = fitting
            .find(|columns| blocks(*columns) * rows >= shards)
            .unwrap_or(SHARD_COLUMNS_MIN);
        let places = blocks(columns) * rows;
        Grid {
            columns,
            blocks: blocks(columns).min(shards.div_ceil(rows.max(1))).max(1),
            shown: if places < shards {
                places.saturating_sub(1)
            } else {
                shards
            },
        }
    }
}

fn draw_shards(change: &Change, frame: &mut Frame, area: Rect) {
    let shards = &change.now().shards;
    // One row is the head's.
    let rows = usize::from(area.height.saturating_sub(1));
    if rows == 0 {
        return;
    }
    let grid = Grid::of(shards.len(), usize::from(area.width), rows);
    let columns = &SHARD_COLUMNS[..grid.columns];
    let width: usize = columns.iter().map(|(_, width)| width).sum();
    let mut lines = shards[..grid.shown].iter().enumerate();
    for block in 0..grid.blocks {
        let head = columns.iter().map(|(head, _)| (*head).to_owned());
        let mut text = vec![Line::from(row(columns, &head.collect::<Vec<_>>())).bold()];
        text.extend(lines.by_ref().take(rows).map(|(index, shard)| {
            let line = Line::from(row(columns, &shard_cells(change, index, shard)));
            let silent = Duration::from_millis(shard.heartbeat_age_ms) > HEARTBEAT_STALE;
            line.style(if silent { BAD } else { Style::new() })
        }));
        if block + 1 == grid.blocks && grid.shown < shards.len() {
            text.push(Line::from(format!("and {} more", shards.len() - grid.shown)).dim());
        }
        let left = block * (width + GAP);
        let place = Rect {
            x: area.x.saturating_add(left as u16),
            width: width as u16,
            ..area
        };
        frame.render_widget(Paragraph::new(text), place.intersection(area));
    }
}

fn shard_cells(change: &Change, index: usize, shard: &Shard) -> Vec<String> {
    let a_second = |number: fn(&Shard) -> u64| {
        rate(change.a_second(|picture| picture.shards.get(index).map(number)))
    };
    vec![
        shard.id.to_string(),
        count(shard.connections),
        a_second(|shard| shard.events),
        a_second(|shard| shard.queries),
        count(shard.subscriptions),
        a_second(|shard| shard.delivered),
        super::figures::bytes(shard.queued_bytes),
        format!("{} ms", count(shard.heartbeat_age_ms)),
    ]
}

/// One row: the first cell to the left, the others to the right.
fn row(columns: &[Column], cells: &[String]) -> String {
    let cells = columns.iter().zip(cells).enumerate();
    let cells = cells.map(|(index, ((_, width), cell))| match index {
        0 => format!("{cell:width$}"),
        _ => format!("{cell:>width$}"),
    });
    cells.collect()
}

#[cfg(test)]
mod tests;
