//! Snapshots and traces in files, and the analysis of existing files.

use crate::boundary::{call, file, text, write_text};
use crate::ids::AllocatorId;
use crate::instance::Instance;
use crate::registry::borrow;
use crate::status::{Failure, Outcome, Status};
use seamalloc::driver::OpenError;
use seamalloc::driver::sim::SimConfig;
use seamalloc::snapshot::Snapshot;
use seamalloc::{Config, StrategyKind};
use seamalloc_trace::replay::ReplayOptions;
use seamalloc_trace::whatif::{DeviceFrom, WhatIf, device_of, whatif};
use seamalloc_trace::{Recorder, read_path, write_path, write_snapshot_path};
use serde_json::Value;
use std::ffi::c_char;

/// Writes the memory that the allocator holds, and the recorded history if there is one, as a memory snapshot that
/// PyTorch's viewer reads (pytorch.org/memory_viz): a pickle. The file appears only when it is complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_snapshot(allocator: AllocatorId, path: *const c_char) -> Status {
    call(|| {
        // SAFETY: as for every function (see the top of `seamalloc.h`).
        let path = unsafe { file(path) }?;
        let instance = borrow(allocator)?;
        let recorder = instance.recorder.lock().clone();
        let snapshot = Snapshot { device: instance.ordinal, ..instance.allocator.reports().snapshot() };
        let history = recorder.map(|recorder| recorder.history()).unwrap_or_default();
        Ok(write_snapshot_path(&snapshot, &history, path)?)
    })
}

/// Records events from now on, and keeps the last `max_entries`. An event takes 56 bytes of memory. An allocation or a
/// free makes one or two events. The records of an earlier call are forgotten.
#[unsafe(no_mangle)]
pub extern "C" fn seam_record_start(allocator: AllocatorId, max_entries: usize) -> Status {
    call(|| {
        let instance = borrow(allocator)?;
        // The recorder and the observer change under the lock, so that other threads that start or stop a recording
        // wait.
        let mut recorder = instance.recorder.lock();
        let (reader, observer) = Recorder::new(max_entries);
        *recorder = Some(reader);
        drop(instance.allocator.reports().set_observer(Some(observer)));
        Ok(())
    })
}

/// Makes every allocator that is created from now on record from its beginning, as by `seam_record_start`; 0 ends this.
/// The function is for a program that does not know yet which devices it will use, and must not touch a device before.
#[unsafe(no_mangle)]
pub extern "C" fn seam_record_new(max_entries: usize) -> Status {
    call(|| {
        Instance::record_new(max_entries);
        Ok(())
    })
}

/// Stops recording, and forgets what was recorded.
#[unsafe(no_mangle)]
pub extern "C" fn seam_record_stop(allocator: AllocatorId) -> Status {
    call(|| {
        let instance = borrow(allocator)?;
        let mut recorder = instance.recorder.lock();
        *recorder = None;
        drop(instance.allocator.reports().set_observer(None));
        Ok(())
    })
}

/// Writes the recorded events as a trace that `seamalloc replay` reads; the name of the file tells the format: .seam,
/// .csv or .csv.gz. Recording goes on. Returns `SEAM_STATUS_INVALID_ARGUMENT` if nothing is recorded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_record_write(allocator: AllocatorId, path: *const c_char) -> Status {
    call(|| {
        // SAFETY: as for every function (see the top of `seamalloc.h`).
        let path = unsafe { file(path) }?;
        let instance = borrow(allocator)?;
        let recorder = instance.recorder.lock().clone();
        let recorder =
            recorder.ok_or_else(|| Failure::argument("nothing is recorded: call seam_record_start first"))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        // The snapshot is taken before the history, so that the history has all frees of blocks of the snapshot.
        let held = instance.allocator.reports().snapshot();
        Ok(write_path(&recorder.to_trace(&name, Some(&held))?, path)?)
    })
}

/// Writes how strategies would have served the jobs that a file holds (a PyTorch snapshot with its history, or a
/// trace): a JSON list with an entry for each job and strategy. An entry has the memory that the strategy would have
/// held (`peak_reserved`, null if the device is too small), the memory that PyTorch held (`recorded_reserved`, null if
/// unknown; `reserved_before` is its part from before the recording), and the bytes of weights and optimizer state that
/// stay from step to step (`persistent`). `largest_step` says how many times as large all other memory could be, 8 at
/// most. `largest_step` is null if not even a hundredth fits, if the job frees nothing (`grows` is false), or if the
/// device is unknown (`sought` is false). The same figures for PyTorch's own allocators on the same device are
/// `native_reserved`, `native_step`, `expandable_reserved` and `expandable_step`. A snapshot without a history has an
/// entry for each device with memory, with `layout` true and the output of `seamalloc whatif --json` without `owners`.
///
/// The device is a simulated one, `sim:h200,capacity=80GiB`. "" is an H200 with the memory of the device that the job
/// was recorded on. `device_from` says how this memory is known: "noted", or "refusal" (from the memory that PyTorch
/// held and the device had free when memory ran out), or "unknown". The strategy is the one in `options`; if `options`
/// name none, there is an entry for each strategy. The call replays the job several times, which takes seconds for each
/// million of operations. The buffer is as in `seam_stats_json`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seam_whatif_json(
    path: *const c_char,
    device: *const c_char,
    options: *const c_char,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Status {
    let look = || {
        // SAFETY: as for every function (see the top of `seamalloc.h`).
        let (path, device, options) = unsafe { (file(path)?, text(device, "device")?, text(options, "options")?) };
        let (config, kinds) = (Config::parse(options)?, strategies(options)?);
        let asked = (!device.is_empty()).then(|| SimConfig::parse(device).map_err(OpenError::from)).transpose()?;
        let mut found = Vec::new();
        let jobs = match read_path(path) {
            Err(error) if !error.layouts().is_empty() => {
                let capacity = asked.as_ref().map(|device| device.capacity);
                let lines = error.layouts().iter().map(|layout| layout.to_json(capacity));
                return Ok(Value::Array(lines.collect()).to_string());
            }
            jobs => jobs?,
        };
        for job in jobs {
            let (device, from) = asked.clone().map_or_else(|| device_of(&job), |device| (device, DeviceFrom::Asked));
            let options = ReplayOptions::new(config.clone(), device);
            found.extend(whatif(&job, &kinds, &options, from, &mut |_, _, _| {})?);
        }
        Ok(Value::Array(found.iter().map(WhatIf::to_json).collect()).to_string())
    };
    // SAFETY: as for every function (see the top of `seamalloc.h`).
    unsafe { write_text(buffer, capacity, length, look) }
}

/// Returns the strategy that the options name, or all strategies. Options name a strategy if the result is the same
/// whichever strategy is set before them.
fn strategies(options: &str) -> Outcome<Vec<StrategyKind>> {
    let over = |kind| Ok::<_, Failure>(Config::with_strategy(kind).overlaid(options)?.strategy);
    let named = over(StrategyKind::Caching)?;
    Ok(if named == over(StrategyKind::Stitch)? { vec![named] } else { StrategyKind::MAIN.to_vec() })
}
