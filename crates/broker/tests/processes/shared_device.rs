//! One device for several processes: each has a driver of its own, and all together no more than the device's memory.
//!
//! What each holds stands in a file of a folder, which it keeps locked. The lock goes when the process ends, however it ends; what it held
//! counts for a while longer, as a GPU's driver takes time to take memory back.

use rustix::fs::{FlockOperation, flock};
use seamalloc::driver::{
    Call, DeviceProperties, Driver, DriverError, DriverResult, ForwardingDriver, MemoryInfo, Status,
};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// How long the memory of a process that has ended counts.
const TAKEN_BACK: Duration = Duration::from_millis(200);
const ENDED: &str = "ended-";
const LOCK: &str = "lock";

pub(crate) struct SharedDevice {
    inner: Box<dyn Driver>,
    properties: DeviceProperties,
    folder: PathBuf,
    own: PathBuf,
    file: File,
    held: AtomicU64,
}

impl SharedDevice {
    /// The device that this folder stands for, with memory of `inner`'s kind and size.
    pub(crate) fn open(inner: Box<dyn Driver>, folder: &Path) -> std::io::Result<Self> {
        static OPENED: AtomicU64 = AtomicU64::new(0);
        fs::create_dir_all(folder)?;
        let own = folder.join(format!("{}-{}", std::process::id(), OPENED.fetch_add(1, Ordering::Relaxed)));
        let file = OpenOptions::new().create(true).truncate(true).write(true).read(true).open(&own)?;
        flock(&file, FlockOperation::LockExclusive)?;
        let identity = folder.to_string_lossy().into_owned();
        let properties = DeviceProperties { identity, ..inner.properties().clone() };
        Ok(Self { inner, properties, folder: folder.to_owned(), own, file, held: AtomicU64::new(0) })
    }

    /// Bytes that all processes hold.
    pub(crate) fn in_use(&self) -> u64 {
        let _alone = self.alone();
        self.of_others() + self.held.load(Ordering::Relaxed)
    }

    fn alone(&self) -> File {
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(self.folder.join(LOCK)).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        lock
    }

    fn of_others(&self) -> u64 {
        let mut sum = 0;
        for entry in fs::read_dir(&self.folder).unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name == LOCK || entry.path() == self.own {
                continue;
            }
            let Ok(mut file) = File::open(entry.path()) else { continue };
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            let bytes: u64 = text.trim().parse().unwrap_or(0);
            let now = SystemTime::now();
            if let Some(at) = name.strip_prefix(ENDED) {
                let at = SystemTime::UNIX_EPOCH + Duration::from_millis(at.split('-').next().unwrap().parse().unwrap());
                if now.duration_since(at).is_ok_and(|since| since > TAKEN_BACK) {
                    fs::remove_file(entry.path()).unwrap();
                    continue;
                }
            } else if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
                let at = now.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
                fs::rename(entry.path(), self.folder.join(format!("{ENDED}{at}-{name}"))).unwrap();
            }
            sum += bytes;
        }
        sum
    }

    fn note(&self) -> DriverResult<()> {
        let info = self.inner.memory_info()?;
        let held = info.total - info.free;
        if self.held.swap(held, Ordering::Relaxed) != held {
            let mut file = &self.file;
            file.seek(SeekFrom::Start(0)).unwrap();
            // As many digits each time.
            file.write_all(format!("{held:020}").as_bytes()).unwrap();
        }
        Ok(())
    }

    fn take<T>(&self, call: Call, size: u64, take: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> DriverResult<T> {
        let _alone = self.alone();
        let taken = self.of_others() + self.held.load(Ordering::Relaxed);
        if taken + size > self.properties.total_memory {
            return Err(DriverError::new(call, Status::OUT_OF_MEMORY, format!("{size} bytes, {taken} are taken")));
        }
        let result = take(&*self.inner);
        self.note()?;
        result
    }
}

impl ForwardingDriver for SharedDevice {
    fn inner(&self) -> &dyn Driver {
        &*self.inner
    }

    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn create(&self, size: u64) -> DriverResult<seamalloc::driver::Handle> {
        self.take(Call::Create, size, |inner| inner.create(size))
    }

    fn malloc(&self, size: u64) -> DriverResult<u64> {
        self.take(Call::Malloc, size.next_multiple_of(2 << 20), |inner| inner.malloc(size))
    }

    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        let total = self.properties.total_memory;
        Ok(MemoryInfo { total, free: total.saturating_sub(self.in_use()) })
    }

    fn make_call<T>(&self, call: Call, make: impl FnOnce(&dyn Driver) -> DriverResult<T>) -> DriverResult<T> {
        if !matches!(call, Call::Release | Call::Unmap | Call::Free) {
            return make(&*self.inner);
        }
        let _alone = self.alone();
        let result = make(&*self.inner);
        self.note()?;
        result
    }
}

impl Drop for SharedDevice {
    fn drop(&mut self) {
        // The folder may be gone.
        let _ = fs::remove_file(&self.own);
    }
}
