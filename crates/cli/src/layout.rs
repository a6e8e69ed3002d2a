//! Snapshots without a history: the memory layout at one moment, for `whatif` and `report`.

use crate::failure::Failure;
use crate::output::{self, Output, bytes, grouped, without_breaks};
use crate::table::Table;
use crate::values::Device;
use seamalloc_page::{LayoutWords, PageTable};
use seamalloc_trace::columns::{Cell, Shown, bytes_beside};
use seamalloc_trace::layout::LayoutPool;
use seamalloc_trace::owners::{Lines, Owners, Sum};
use seamalloc_trace::pytorch::{HeldOrigins, read_held_origins};
use seamalloc_trace::{Layout, TraceError};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The most owners that are listed.
const MOST_OWNERS: usize = 10;

/// The assumptions behind the largest request that each strategy could serve.
const ASSUMPTIONS: &str = "The blocks stay where they are. native serves a request from one hole, or from wholly free segments that \
    it gives back; expandable segments map wholly free pieces of 20 MiB anew; stitch joins all free pieces of 2 MiB, for \
    which it splits chunks; with split:off it joins wholly free pieces of 20 MiB and two free ends of others.";

/// The memory layouts of several snapshots that have no history.
#[derive(Default)]
pub(crate) struct Layouts(Vec<(PathBuf, Layout)>);

impl Layouts {
    /// Keeps the layouts of a snapshot that has no history, and returns any other result unchanged.
    pub(crate) fn or<T>(&mut self, path: &Path, loaded: Result<Vec<T>, Failure>) -> Result<Vec<T>, Failure> {
        match loaded {
            Err(Failure::Trace(error)) if !error.layouts().is_empty() => {
                self.0.extend(error.layouts().iter().map(|layout| (path.to_owned(), layout.clone())));
                Ok(Vec::new())
            }
            loaded => loaded,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Prints a description of each layout, and returns the descriptions for a page. With `json`, prints only a line
    /// for each layout. The size of the device is known only if `device` was given. Files whose paths contain one of
    /// `libraries` are not the user's code.
    pub(crate) fn print(
        &self,
        output: &mut Output,
        device: Option<&Device>,
        json: bool,
        libraries: &[String],
    ) -> Result<Vec<LayoutWords>, Failure> {
        let capacity = match device {
            Some(Device::Sim(device)) => Some(device.capacity),
            _ => None,
        };
        let mut all = Vec::new();
        for (index, (path, layout)) in self.0.iter().enumerate() {
            let held = held_origins(path, layout.device)?;
            let owners = held.as_ref().map(|held| (owners(held, libraries), &held.origins));
            let words = words(layout, capacity, owners.as_ref().map(|(owners, _)| owners));
            if json {
                let mut line = layout.to_json(capacity);
                line["owners"] = owners.map_or(Value::Null, |(owners, origins)| owners.to_json(origins));
                output::print(&line.to_string())?;
            } else {
                if index > 0 {
                    output.text("")?;
                }
                print(output, layout, &words)?;
            }
            all.push(words);
        }
        Ok(all)
    }
}

/// Returns the stacks of the blocks that are allocated on a device, if the snapshot has any.
fn held_origins(path: &Path, device: u32) -> Result<Option<HeldOrigins>, TraceError> {
    let found = read_held_origins(path)?.into_iter().find(|held| held.device == device);
    Ok(found.filter(|held| held.origins.of_block.iter().any(|stack| *stack > 0)))
}

fn owners(held: &HeldOrigins, libraries: &[String]) -> Owners {
    let blocks = held.origins.of_block.iter().copied().zip(held.sizes.iter().copied());
    Owners::of(blocks, &held.origins, &Lines::of(&held.origins, libraries), MOST_OWNERS)
}

fn print(output: &mut Output, layout: &Layout, words: &LayoutWords) -> Result<(), Failure> {
    let [headline, reasons, next] = &words.verdict;
    output.text(&format!("{}: {headline}", words.name))?;
    output.text(reasons)?;
    output.text(&format!("Next: {next}"))?;
    output.text("")?;
    let mut table = Table::new(LayoutPool::COLUMNS);
    layout.pools.iter().for_each(|pool| table.add(pool, 0));
    output.table(&table)?;
    output.text("")?;
    words.texts.iter().try_for_each(|text| output.text(text))?;
    // The first table is that of the pools, which is printed above.
    for table in words.tables.iter().skip(1) {
        output.text("")?;
        output.text(&table.caption)?;
        for row in &table.rows {
            if let [name, held, share] = row.as_slice() {
                output.text(&without_breaks(&format!("{held:>12}  {share:>6}  {name}")))?;
            }
        }
    }
    Ok(())
}

/// Returns the words for a layout.
fn words(layout: &Layout, capacity: Option<u64>, owners: Option<&Owners>) -> LayoutWords {
    let verdict = layout.verdict(capacity);
    let held = &layout.held;
    let bytes = |bytes: u64| without_breaks(&bytes_beside(bytes, held.reserved));
    let mut texts = vec![format!(
        "The snapshot has no history of allocations: this is the memory at one moment. {} are held in {}: {} allocated, {} \
         pending, {} free in {}, the largest {}.",
        bytes(held.reserved),
        counted(layout.segments, "segment"),
        bytes(held.allocated),
        bytes(held.pending),
        bytes(held.free),
        counted(held.holes, "hole"),
        bytes(held.largest_hole)
    )];
    let largest = layout.largest_requests(capacity);
    let room = match capacity {
        Some(capacity) if capacity < held.reserved => {
            format!("on a device of {}, which is less than the snapshot's held", bytes(capacity))
        }
        Some(capacity) => format!("on a device of {}", bytes(capacity)),
        None => "without new memory of the device (--device sim:rtx4090, for example, says how much it has)".to_owned(),
    };
    texts.push(format!(
        "The largest request that could be served then, {room}: {} with native, {} with expandable segments, {} with stitch, {} with \
         stitch and split:off. {ASSUMPTIONS}",
        bytes(largest.native),
        bytes(largest.expandable),
        bytes(largest.stitch),
        bytes(largest.unsplit)
    ));
    let mut tables = vec![pools(layout)];
    match owners {
        Some(owners) => tables.push(owners_table(owners)),
        None => texts.push(
            "The snapshot has no stacks. With torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks=\"python\") \
             before the job it says who holds what."
                .to_owned(),
        ),
    }
    let name = format!("{}, device {}", layout.name, layout.device);
    LayoutWords { name, verdict: [verdict.headline, verdict.reasons, verdict.next], texts, tables }
}

/// Returns the table of streams and pools, for a page.
fn pools(layout: &Layout) -> PageTable {
    let shown: Vec<_> = LayoutPool::COLUMNS.iter().filter_map(|column| column.shown.as_ref()).collect();
    let cells = |pool: &LayoutPool| {
        let cell = |shown: &&Shown<LayoutPool>| match (shown.cell)(pool) {
            Cell::Text(text) | Cell::Failed(text) => text,
            Cell::Used(part) => format!("{:.2}%", part * 100.0),
        };
        shown.iter().map(cell).collect()
    };
    PageTable {
        caption: "The memory that each stream holds of each pool.".to_owned(),
        headings: shown.iter().map(|shown| shown.heading.replace('\n', ", ")).collect(),
        rows: layout.pools.iter().map(cells).collect(),
    }
}

/// Returns a number of things in words.
fn counted(count: u64, thing: &str) -> String {
    format!("{} {thing}{}", grouped(count), if count == 1 { "" } else { "s" })
}

fn owners_table(owners: &Owners) -> PageTable {
    let row = |sum: Sum, name: &str| {
        vec![name.to_owned(), bytes_beside(sum.bytes, owners.live), format!("{:.1}%", sum.share * 100.0)]
    };
    let mut rows: Vec<_> = owners.rows.iter().map(|owner| row(owner.held, &owner.name)).collect();
    if owners.other_lines > 0 {
        rows.push(row(owners.other, &counted(owners.other_lines as u64, "other line")));
    }
    if owners.not_recorded.blocks > 0 {
        rows.push(row(owners.not_recorded, "not recorded"));
    }
    PageTable {
        caption: format!("Who holds the {} that the program asked for:", bytes(owners.live)),
        headings: ["asked for by", "held", "share"].map(str::to_owned).to_vec(),
        rows,
    }
}
