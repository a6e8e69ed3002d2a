//! `seamalloc broker`: lends free memory between processes on one GPU.

use crate::args::Color;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::table::Table;
use clap::{Args, Subcommand, ValueHint};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use seamalloc::units::format_bytes;
use seamalloc_broker::{Broker, BrokerError, MemberStatus, SocketError, default_socket, status};
use seamalloc_trace::columns::Column;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use std::io::ErrorKind::{ConnectionRefused, NotFound};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// The text of `--help` below the options.
pub(crate) const HELP: &str = "\
A process takes part with the option broker:auto (SEAMALLOC_CONF=broker:auto, seamalloc.enable(broker='auto')), or \
broker:FILE for another socket. Only processes of the same user are served. It ends at SIGTERM and SIGINT, and its \
socket with it; what a broker left behind that was killed is taken over.";

/// Returns the legend of the columns of `status`.
pub(crate) fn legend() -> String {
    crate::explain::legend(COLUMNS)
}

#[derive(Debug, Args)]
pub(crate) struct BrokerArgs {
    #[command(subcommand)]
    action: Option<Action>,
    /// Listen, or ask, at this socket [default: broker.sock in $XDG_RUNTIME_DIR/seamalloc or /tmp/seamalloc-UID].
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    socket: Option<PathBuf>,
    /// Print one JSON object a line: for each event of the broker, or for each process.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the processes that take part, and what each holds and could give.
    #[command(after_help = legend())]
    Status,
}

const COLUMNS: &[Column<MemberStatus>] = &[
    Column::run("pid", |row: &MemberStatus| row.pid.into())
        .text("pid", |row| if row.pid == 0 { "-".into() } else { row.pid.to_string().into() })
        .legend("pid", "- where the process is of another namespace"),
    Column::run("device", |row: &MemberStatus| row.device.as_str().into())
        .text("device", |row| row.device.as_str().into()),
    Column::result("held", |row: &MemberStatus| row.held.into())
        .figure("held", |row| format_bytes(row.held).into())
        .legend("held", "memory held from the driver"),
    Column::result("live", |row: &MemberStatus| row.live.into())
        .figure("live", |row| format_bytes(row.live).into())
        .legend("live", "the part of it that is in use"),
    Column::result("free", |row: &MemberStatus| row.free.into())
        .figure("free", |row| format_bytes(row.free).into())
        .legend("free", "the rest, which goes to who is short, down to the guarantee"),
    Column::result("guarantee", |row: &MemberStatus| row.guarantee.into())
        .figure("guarantee", |row| format_bytes(row.guarantee).into()),
    Column::result("given", |row: &MemberStatus| row.given.into())
        .figure("given", |row| format_bytes(row.given).into())
        .legend("given", "what it gave to others so far"),
    Column::result("received", |row: &MemberStatus| row.received.into())
        .figure("received", |row| format_bytes(row.received).into())
        .legend("received", "what others gave when it was short"),
    Column::result("silent", |row: &MemberStatus| row.silent.into())
        .figure("silent", |row| row.silent.to_string().into())
        .legend("silent", "how often it did not answer in time")
        .spare(6),
    Column::run("program", |row: &MemberStatus| row.command.as_str().into())
        .text("program", |row| row.command.chars().take(PROGRAM).collect::<String>().into())
        .spare(7),
];

/// The open files that the broker needs while it has the most members and questions.
const DESCRIPTORS: u64 = 4096;
/// Characters of a command line that are shown.
const PROGRAM: usize = 40;

pub(crate) fn run(args: &BrokerArgs, color: Color) -> Result<(), Failure> {
    let socket = args.socket.clone().unwrap_or_else(default_socket);
    if let Some(Action::Status) = args.action {
        let members = status::members(&socket).map_err(|error| match error {
            SocketError::Ask { path, error } if matches!(error.kind(), NotFound | ConnectionRefused) => {
                Failure::NoBroker { path }
            }
            error => error.into(),
        })?;
        if args.json {
            return members.iter().try_for_each(|member| output::print(&json!(member).to_string()));
        }
        if members.is_empty() {
            return output::print("no process takes part");
        }
        let mut table = Table::new(COLUMNS);
        members.iter().for_each(|member| table.add(member, 0));
        return Output::new(color, None)?.table(&table);
    }
    // The handling of signals begins before the socket is made, so that no signal leaves a socket behind.
    let stop = signals().map_err(BrokerError::Thread)?;
    raise_descriptors();
    let broker = Broker::bind(&socket)?;
    let begun = if args.json {
        json!({ "event": "listens", "socket": socket.display().to_string() }).to_string()
    } else {
        format!("listens at {}", socket.display())
    };
    output::print(&begun)?;
    let mut printed = Ok(());
    let ended = broker.run(&stop, &mut |event| {
        // A closed output does not end the broker, since processes are still served.
        if printed.is_ok() {
            printed = output::print(&if args.json { json!(event).to_string() } else { event.to_string() });
        }
    });
    Ok(ended.map_err(|error| SocketError::Listen { path: socket, error })?)
}

/// Raises the soft limit of open descriptors towards the hard limit, since the soft limit bounds the number of members.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(DESCRIPTORS).min(DESCRIPTORS);
    let raised = Rlimit { current: limit.current.map(|now| now.max(wanted)), ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of open files stays");
    }
}

/// Returns a socket that becomes readable when a signal asks the process to end.
fn signals() -> std::io::Result<UnixStream> {
    let (stop, asked) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        pipe::register(signal, asked.try_clone()?)?;
    }
    Ok(stop)
}
