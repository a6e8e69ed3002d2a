//! Real processes that are killed in the middle of something, and that fork: clients, and brokers.
//!
//! Each process is this program again, which does what its standard input says. Memory is an account of a device that they share.

use crate::harness::{LONG, Process, Raw};
use crate::shared_device::SharedDevice;
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions, kill_process, setrlimit, waitpid};
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{Driver, StreamId};
use seamalloc::{Allocator, Config, Lender, Shortage};
use seamalloc_broker::{Broker, BrokerError, Membership, Terms, status};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const FOLDER: &str = "SEAMALLOC_TEST_FOLDER";
const ROLE: &str = "SEAMALLOC_TEST_ROLE";
/// Children that are forked while other threads hold the locks of a membership every now and then.
const FORKS: usize = 40;
/// Open files that a broker of few may have.
const FEW: u64 = 64;

fn socket(folder: &Path) -> PathBuf {
    folder.join("broker.sock")
}

fn device(folder: &Path) -> Arc<SharedDevice> {
    let gpu = SimGpu::new(SimConfig::parse("sim:h200,capacity=256MiB").unwrap()).unwrap();
    Arc::new(SharedDevice::open(Box::new(gpu), &folder.join("device")).unwrap())
}

/// An allocator that takes part.
fn member(folder: &Path) -> (Arc<Allocator>, Membership, Arc<dyn Lender>) {
    let driver: Arc<dyn Driver> = device(folder);
    let options = format!("broker:{},chunk_size_mb:4", socket(folder).display());
    let allocator = Arc::new(Allocator::new(driver, Config::parse(&options).unwrap()).unwrap());
    let membership = Membership::start(Terms::of(&allocator).unwrap(), Arc::downgrade(&allocator)).unwrap();
    let lender = membership.lender();
    allocator.lending().set_lender(Some(Arc::clone(&lender)));
    (allocator, membership, lender)
}

/// Forks. The child does this, and ends without its parent's destructors; a panic is an end that tells.
fn fork(child: impl FnOnce()) -> Pid {
    // SAFETY: the child calls what this library promises to forked children, allocates, for which glibc is prepared, and ends.
    match unsafe { libc::fork() } {
        0 => {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).is_ok();
            // SAFETY: nothing of this process is used afterwards.
            unsafe { libc::_exit(i32::from(!done)) }
        }
        pid => Pid::from_raw(pid).unwrap(),
    }
}

/// Closes a forked child's copies of the device's files: on a GPU the memory goes with the process, here with its lock.
fn leave_device(folder: &Path) {
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        if std::fs::read_link(entry.path()).is_ok_and(|file| file.starts_with(folder.join("device"))) {
            let number = entry.file_name().to_str().and_then(|number| number.parse().ok()).unwrap();
            // SAFETY: whoever has the descriptor in this process is never dropped, nor used.
            unsafe { libc::close(number) };
        }
    }
}

/// Returns whether a child ended well, and soon.
fn ends_well(child: Pid) -> bool {
    let begun = Instant::now();
    loop {
        match waitpid(Some(child), WaitOptions::NOHANG).unwrap() {
            Some((_, status)) => return status.exit_status() == Some(0),
            None if begun.elapsed() > LONG => {
                kill_process(child, Signal::KILL).unwrap();
                return false;
            }
            None => thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Runs the processes of these tests, each by its role.
#[test]
fn role() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    match std::env::var(ROLE).unwrap().as_str() {
        "broker" => {
            let broker = Broker::bind(&socket(&folder)).unwrap();
            println!("\nready");
            broker.run(std::io::stdin(), &mut |_| {}).unwrap();
        }
        "broker of few" => {
            let few = Rlimit { current: Some(FEW), maximum: Some(FEW) };
            setrlimit(Resource::Nofile, few).unwrap();
            let broker = Broker::bind(&socket(&folder)).unwrap();
            println!("\nready");
            broker.run(std::io::stdin(), &mut |_| {}).unwrap();
        }
        "client" => client(&folder),
        _ => forks(&folder),
    }
}

fn client(folder: &Path) {
    let (allocator, membership, _) = member(folder);
    assert!(membership.wait_joined(LONG));
    println!("\nready");
    let mut live = Vec::new();
    for line in std::io::stdin().lines() {
        match line.unwrap().split_once(' ').unwrap() {
            ("take", mib) => match allocator.allocate(mib.parse::<u64>().unwrap() * MIB, StreamId::DEFAULT) {
                Ok(address) => {
                    live.push(address);
                    println!("\ndone");
                }
                Err(error) => println!("\nfailed {}", error.to_string().replace('\n', " ")),
            },
            ("free", _) => {
                live.drain(..).for_each(|address| allocator.free(address).unwrap());
                println!("\ndone");
            }
            ("fork", _) => {
                // It has copies of the connections, and lives on until the test kills it.
                let child = fork(|| {
                    leave_device(folder);
                    thread::sleep(LONG);
                });
                println!("\ndone {}", child.as_raw_nonzero());
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A process with a broker and a member, and its children.
fn forks(folder: &Path) {
    let broker = Broker::start(&socket(folder)).unwrap();
    let (allocator, membership, lender) = member(folder);
    assert!(membership.wait_joined(LONG));
    let (membership, ends) = (Arc::new(membership), Arc::new(AtomicBool::new(false)));
    let busy: Vec<_> = (0..2)
        .map(|_| {
            let (membership, ends) = (Arc::clone(&membership), Arc::clone(&ends));
            thread::spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    assert!(membership.is_joined());
                }
            })
        })
        .collect();
    for at in 0..FORKS {
        let child = fork(|| {
            assert!(!membership.is_joined() && !membership.wait_joined(LONG));
            let lent = lender.ask(&Shortage::new(MIB, 0));
            assert_eq!((lent.processes, lent.again), (0, false));
        });
        assert!(ends_well(child), "child {at} waits for a lock that nobody holds there");
    }
    ends.store(true, Ordering::Relaxed);
    busy.into_iter().for_each(|thread| thread.join().unwrap());
    // One that ends with all destructors.
    let other = folder.join("other.sock");
    let bound = Broker::bind(&other).unwrap();
    let mut parents = Some((broker, membership, lender, bound));
    let child = fork(|| drop(parents.take()));
    assert!(ends_well(child), "it waits for a thread that is not there");
    let (broker, membership, lender, bound) = parents.unwrap();
    assert!(broker.path().exists() && other.exists(), "it has removed its parent's sockets");
    assert!(matches!(Broker::bind(&other), Err(BrokerError::InUse { .. })), "it has given its parent's lock away");
    drop(bound);
    assert_eq!(status::members(broker.path()).unwrap().len(), 1, "its parent goes on");
    // One that lives on, with copies of all connections.
    let child = fork(|| thread::sleep(LONG));
    allocator.lending().set_lender(None);
    drop((membership, lender));
    let begun = Instant::now();
    while !status::members(broker.path()).unwrap().is_empty() {
        assert!(begun.elapsed() < LONG, "the thread of the membership goes on");
    }
    let path = broker.path().to_owned();
    drop(broker);
    assert!(!path.exists());
    drop(Broker::start(&path).unwrap());
    kill_process(child, Signal::KILL).unwrap();
    println!("\ndone");
}

/// This program again, in a role.
fn start(folder: &Path, role: &str) -> Process {
    Process::start("killed::role", [(FOLDER, folder.as_os_str()), (ROLE, role.as_ref())])
}

/// As [`start`], once it is ready.
fn ready(folder: &Path, role: &str) -> Process {
    Process::ready("killed::role", [(FOLDER, folder.as_os_str()), (ROLE, role.as_ref())])
}

fn world() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    (folder, path)
}

/// More processes join than there are descriptors for.
#[test]
fn a_broker_of_few_descriptors_refuses_members_and_answers_questions() {
    let (_folder, path) = world();
    let broker = ready(&path, "broker of few");
    let mut members: Vec<Raw> = Vec::new();
    let mut refused = 0;
    for _ in 0..FEW {
        let mut raw = Raw::connect(&socket(&path));
        raw.say("{\"join\":{\"version\":1,\"device\":\"gpu\",\"guarantee\":0}}\n");
        let said = raw.hear();
        if said.starts_with("{\"joined\"") {
            members.push(raw);
        } else {
            assert!(said.starts_with("{\"refused\"") && said.contains("descriptors"), "{said}");
            refused += 1;
        }
    }
    assert!(members.len() > 8 && refused > 8, "{} joined, {refused} were refused", members.len());
    assert_eq!(status::members(&socket(&path)).unwrap().len(), members.len());
    let mut asks = Raw::connect(&socket(&path));
    asks.say("{\"ask\":{\"version\":1,\"device\":\"gpu\",\"member\":null,\"missing\":1,\"held\":0}}\n");
    assert!(asks.hear().starts_with("{\"lent\""));
    // Where one leaves another may join.
    drop(members.pop());
    let begun = Instant::now();
    while status::members(&socket(&path)).unwrap().len() > members.len() {
        assert!(begun.elapsed() < LONG);
    }
    let mut raw = Raw::connect(&socket(&path));
    raw.say("{\"join\":{\"version\":1,\"device\":\"gpu\",\"guarantee\":0}}\n");
    assert!(raw.hear().starts_with("{\"joined\""));
    broker.end();
}

#[test]
fn what_a_killed_client_held_comes_back_although_its_child_has_its_connection() {
    let (_folder, path) = world();
    let _broker = ready(&path, "broker");
    let (mut one, mut two) = (ready(&path, "client"), ready(&path, "client"));
    assert_eq!(one.does("take 180"), "done");
    let child: i32 = one.does("fork it").trim_start_matches("done ").parse().unwrap();
    two.begin("take 160");
    drop(one);
    assert_eq!(two.next(), "done");
    let members = status::members(&socket(&path)).unwrap();
    kill_process(Pid::from_raw(child).unwrap(), Signal::KILL).unwrap();
    assert_eq!(members.len(), 1, "{members:?}");
}

#[test]
fn a_broker_that_is_killed_costs_no_request_and_the_next_one_knows_what_each_holds() {
    let (_folder, path) = world();
    let broker = ready(&path, "broker");
    let mut clients = [(); 3].map(|()| ready(&path, "client"));
    assert_eq!(clients[0].does("take 180"), "done");
    assert_eq!(clients[0].does("free it"), "done");
    drop(broker);
    assert!(socket(&path).exists(), "it was killed");
    // It asks while there is no broker, and is among the first of the next one.
    clients[1].begin("take 180");
    let broker = ready(&path, "broker");
    assert_eq!(clients[1].next(), "done");
    let begun = Instant::now();
    let members = loop {
        let members = status::members(&socket(&path)).unwrap();
        if members.len() == 3 {
            break members;
        }
        assert!(begun.elapsed() < LONG, "{members:?}");
        thread::sleep(Duration::from_millis(10));
    };
    let held: u64 = members.iter().map(|member| member.held).sum();
    assert!((180 * MIB..=256 * MIB).contains(&held), "{members:?}");
    assert_eq!(members.iter().map(|member| member.live).sum::<u64>(), 180 * MIB);
    // Killed while it serves: the next one goes on.
    assert_eq!(clients[1].does("free it"), "done");
    clients[2].begin("take 200");
    drop(broker);
    let _broker = ready(&path, "broker");
    assert_eq!(clients[2].next(), "done");
}

#[test]
fn children_that_are_forked_wait_for_nothing_end_nothing_and_remove_nothing() {
    let (_folder, path) = world();
    let mut forks = start(&path, "forks");
    assert_eq!(forks.next(), "done");
}
