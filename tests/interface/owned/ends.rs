//! Blocks at the end of a thread, and of a process: in thread-locals, in statics, in what runs at exit.

#![allow(clippy::print_stdout, clippy::exit, reason = "a process of its own ends, and says what it did")]

use super::{MAIN, MIB, device, live};
use seamalloc::{Allocator, Block};
use std::cell::RefCell;
use std::env;
use std::process::Command;
use std::sync::{Arc, Mutex};

/// Says to a process of its own how it is to end.
const HOW: &str = "SEAMALLOC_TEST_END";

thread_local! {
    static OF_THREAD: RefCell<Vec<Block>> = const { RefCell::new(Vec::new()) };
}

static OF_PROCESS: Mutex<Vec<Block>> = Mutex::new(Vec::new());

unsafe extern "C" {
    fn atexit(run: extern "C" fn()) -> i32;
}

extern "C" fn drop_at_exit() {
    let blocks = std::mem::take(&mut *OF_PROCESS.lock().unwrap());
    let dropped = blocks.len();
    drop(blocks);
    println!("{dropped} dropped at exit");
}

#[test]
fn blocks_of_a_thread_are_freed_with_it() {
    let (_, allocator) = device();
    let allocator = Arc::new(allocator);
    let inside = Arc::clone(&allocator);
    let thread = std::thread::spawn(move || {
        OF_THREAD.with_borrow_mut(|blocks| {
            blocks.extend((1..20).map(|mib| Block::new(Arc::clone(&inside), mib * MIB, MAIN).unwrap()));
        });
        live(&inside)
    });
    assert_eq!(thread.join().unwrap(), 19);
    assert_eq!(live(&allocator), 0);
}

/// Runs the separate process; does nothing elsewhere.
#[test]
fn a_process_that_ends() {
    let Ok(how) = env::var(HOW) else { return };
    let allocator = Arc::new(Allocator::open("sim:h200", "").unwrap());
    let mut blocks: Vec<Block> =
        (1..20).map(|mib| Block::new(Arc::clone(&allocator), mib * MIB, MAIN).unwrap()).collect();
    OF_THREAD.with_borrow_mut(|of_thread| of_thread.extend(blocks.drain(..9)));
    OF_PROCESS.lock().unwrap().extend(blocks);
    // The last of the two has the allocator's end in it.
    drop(allocator);
    if how != "static" {
        // SAFETY: the function is there to the end of the process, and does not unwind: its lock is nobody's.
        assert_eq!(unsafe { atexit(drop_at_exit) }, 0);
    }
    match how.as_str() {
        "unwind" => panic!("on purpose"),
        _ => std::process::exit(0),
    }
}

fn end(how: &str) -> (Option<i32>, String) {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "owned::ends::a_process_that_ends", "--nocapture", "--test-threads", "1"])
        .env(HOW, how)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (output.status.code(), said)
}

#[test]
fn blocks_that_are_dropped_at_exit_do_no_harm() {
    let (code, said) = end("exit");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("10 dropped at exit") && !said.contains("panicked"), "{said}");
}

#[test]
fn blocks_in_a_static_do_no_harm() {
    let (code, said) = end("static");
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn blocks_of_a_process_that_panics_do_no_harm() {
    let (code, said) = end("unwind");
    // The test harness's: a test has failed, and nothing was aborted.
    assert_eq!(code, Some(101), "{said}");
    assert_eq!(said.matches("panicked at").count(), 1, "{said}");
    assert!(said.contains("on purpose") && said.contains("10 dropped at exit"), "{said}");
}
