//! A simulated GPU that tells how large each piece of physical memory is, and what is mapped outside of home.

use seamalloc::driver::sim::{Range, SimConfig, SimGpu};
use seamalloc::driver::{Driver, DriverResult, ForwardingDriver, Handle};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;

pub(crate) struct Watch {
    pub(crate) sim: SimGpu,
    sizes: Mutex<HashMap<u64, u64>>,
    /// The first reservation that is there: for stitching it is home.
    home: Mutex<Option<Range>>,
    /// Where something is mapped, by address.
    mapped: Mutex<BTreeMap<u64, u64>>,
}

impl Watch {
    pub(crate) fn new(config: SimConfig) -> Self {
        let (sizes, home, mapped) = Default::default();
        Self { sim: SimGpu::new(config).unwrap(), sizes, home, mapped }
    }

    /// Mappings outside of home.
    pub(crate) fn in_views(&self) -> usize {
        let home = self.home.lock().unwrap().unwrap_or(Range { address: 0, size: 0 });
        let outside = |address: &&u64| !(home.address..home.address + home.size).contains(*address);
        self.mapped.lock().unwrap().keys().filter(outside).count()
    }

    /// Bytes of all chunks of which some byte lies in one of these ranges.
    pub(crate) fn touched(&self, ranges: impl Iterator<Item = Range>) -> u64 {
        let pieces = ranges.flat_map(|range| self.sim.physical(range));
        let chunks: BTreeSet<u64> = pieces.map(|piece| piece.memory).collect();
        let sizes = self.sizes.lock().unwrap();
        chunks.iter().map(|chunk| sizes[chunk]).sum()
    }
}

impl ForwardingDriver for Watch {
    fn inner(&self) -> &dyn Driver {
        &self.sim
    }
    fn reserve(&self, size: u64, alignment: u64) -> DriverResult<u64> {
        let address = self.inner().reserve(size, alignment)?;
        self.home.lock().unwrap().get_or_insert(Range { address, size });
        Ok(address)
    }
    fn address_free(&self, address: u64, size: u64) -> DriverResult<()> {
        self.inner().address_free(address, size)?;
        self.home.lock().unwrap().take_if(|home| home.address == address);
        Ok(())
    }
    fn create(&self, size: u64) -> DriverResult<Handle> {
        let handle = self.inner().create(size)?;
        // A handle's number is that of its memory.
        self.sizes.lock().unwrap().insert(handle.0, size);
        Ok(handle)
    }
    fn map(&self, address: u64, size: u64, offset: u64, handle: Handle) -> DriverResult<()> {
        self.inner().map(address, size, offset, handle)?;
        self.mapped.lock().unwrap().insert(address, size);
        Ok(())
    }
    fn unmap(&self, address: u64, size: u64) -> DriverResult<()> {
        self.inner().unmap(address, size)?;
        self.mapped.lock().unwrap().retain(|at, _| !(address..address + size).contains(at));
        Ok(())
    }
}
