//! How likely each operation of a program is.

use super::bytes::Bytes;
use super::program::{How, Kernel, Op, Size, Until, Which};
use super::scenarios;

/// The function that reads the next operations.
type Read = fn(&mut Bytes<'_>, &mut Vec<Op>);

/// How likely each operation is, in 256ths.
const OPERATIONS: [(u16, Read); 40] = [
    (65, |b, ops| ops.push(Op::Allocate { size: Size::read(b), stream: b.next(), kernel: Kernel::read(b) })),
    (10, |b, ops| {
        let (pool, only_held) = (b.next(), b.one_in(4));
        ops.push(Op::AllocateIn { pool, size: Size::read(b), stream: b.next(), kernel: Kernel::read(b), only_held });
    }),
    (46, |b, ops| ops.push(Op::Free { block: Which::read(b), how: How::read(b) })),
    (14, |b, ops| ops.push(Op::Launch { block: Which::read(b), stream: b.next(), kernel: Kernel::read(b) })),
    (8, |b, ops| ops.push(Op::Advance(until(b)))),
    (48, scenarios::read),
    (1, |b, ops| ops.push(Op::RunAhead { us: b.next() })),
    (4, |_, ops| ops.push(Op::EmptyCache)),
    (4, |b, ops| ops.push(Op::Trim { part: b.next() })),
    (2, |b, ops| ops.push(Op::Limit { part: Some(b.next()) })),
    (2, |_, ops| ops.push(Op::Limit { part: None })),
    (1, |b, ops| ops.push(Op::Fraction { percent: b.next() })),
    (4, |b, ops| ops.push(Op::ForgetStream { stream: b.next(), destroy: !b.one_in(3) })),
    (2, |b, ops| ops.push(Op::ReplaceStream { stream: b.next() })),
    (2, |b, ops| ops.push(Op::BorrowStream { stream: b.next() })),
    (2, |_, ops| ops.push(Op::CreatePool)),
    (2, |b, ops| ops.push(Op::OpenPoolWithSegments { unsplit: b.one_in(2), own_source: b.one_in(2) })),
    (2, |b, ops| ops.push(Op::ReopenPool { which: b.next() })),
    (1, |b, ops| ops.push(Op::KeepPoolUnsplit { pool: b.next() })),
    (1, |b, ops| ops.push(Op::RetainPool { pool: b.next() })),
    (3, |b, ops| ops.push(Op::ReleasePool { pool: b.next() })),
    (2, |b, ops| ops.push(Op::EmptyPool { pool: b.next() })),
    (2, |b, ops| ops.push(Op::BeginRoute { pool: b.next(), stream: b.next() })),
    (2, |b, ops| ops.push(Op::EndRoute { pool: b.next() })),
    (2, |b, ops| ops.push(Op::BeginCapture { pool: b.next(), stream: b.next(), mode: b.next() })),
    (5, |_, ops| ops.push(Op::EndCapture)),
    (2, |b, ops| ops.push(Op::LaunchGraph { graph: b.next(), stream: b.next(), kernel: Kernel::read(b) })),
    (1, |b, ops| ops.push(Op::TakeCheckpoint { pool: b.next() })),
    (1, |b, ops| ops.push(Op::Restore { checkpoint: b.next() })),
    (2, |b, ops| ops.push(Op::LeaveToCallback { block: Which::read(b) })),
    (1, |b, ops| ops.push(Op::Share { block: Which::read(b) })),
    (1, |b, ops| ops.push(Op::OpenShared { handle: std::array::from_fn(|_| b.next()) })),
    (1, |b, ops| ops.push(Op::WrongAddress { address: b.next_u64() })),
    (1, |b, ops| ops.push(Op::NextToBlock { block: Which::read(b), by: b.next() })),
    (1, |b, ops| ops.push(Op::TooLarge { which: b.next(), stream: b.next() })),
    (1, |b, ops| ops.push(Op::ConnectPeer { ordinal: b.next() })),
    (3, |b, ops| ops.push(Op::Fail { call: b.next(), nth: b.next(), status: b.next() })),
    (2, |_, ops| ops.push(Op::FailNoMore)),
    (1, |b, ops| ops.push(if b.one_in(2) { Op::LoseContext { really: b.one_in(16) } } else { Op::ResetStats })),
    (1, |_, ops| ops.push(Op::Look)),
];

/// Reads the next operation, or the few of a scenario.
pub(super) fn read(bytes: &mut Bytes<'_>, ops: &mut Vec<Op>) {
    bytes.weighted(&OPERATIONS)(bytes, ops);
}

fn until(bytes: &mut Bytes<'_>) -> Until {
    match bytes.next() {
        at @ 0..80 => Until::Us(u32::from(at) * 2),
        at @ 80..160 => Until::Us(u32::from(at) * 200),
        _ => Until::Done(bytes.next()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weights_of_the_operations_leave_no_byte_without_one() {
        assert_eq!(OPERATIONS.iter().map(|(weight, _)| weight).sum::<u16>(), 256);
    }
}
