//! Several inputs of one command: one that is broken is named, and the others are processed.

use crate::failure::Failure;
use crate::output;
use std::path::{Path, PathBuf};

/// How many inputs there are, and how many of them could not be processed.
#[derive(Debug)]
pub(crate) struct Inputs {
    of: usize,
    broken: usize,
}

impl Inputs {
    /// Inputs of which none is broken.
    pub(crate) fn whole(of: usize) -> Self {
        Self { of, broken: 0 }
    }

    /// Reads all inputs before anything runs, so that what cannot be read is known at once.
    ///
    /// # Errors
    /// The error of an only input; [`Failure::Broken`] if none can be read.
    pub(crate) fn read<T>(
        paths: &[PathBuf],
        mut read: impl FnMut(&Path) -> Result<Vec<T>, Failure>,
    ) -> Result<(Vec<T>, Self), Failure> {
        let mut inputs = Self::whole(paths.len());
        let mut all = Vec::new();
        for path in paths {
            match read(path) {
                Ok(found) => all.extend(found),
                Err(failure) => inputs.skip(failure)?,
            }
        }
        if inputs.broken > 0 && inputs.broken == inputs.of {
            inputs.finish(Ok(())).map(|()| (all, inputs))
        } else {
            Ok((all, inputs))
        }
    }

    /// Processes what was read, each by itself.
    ///
    /// # Errors
    /// The error of an only input, and one that is no input's fault.
    pub(crate) fn each<'i, T>(
        &mut self,
        items: &'i [T],
        mut process: impl FnMut(&'i T) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        items.iter().try_for_each(|item| process(item).or_else(|failure| self.skip(failure)))
    }

    /// Returns how many inputs there are, those that are broken among them.
    pub(crate) fn count(&self) -> usize {
        self.of
    }

    /// Tells why an input is left out.
    fn skip(&mut self, failure: Failure) -> Result<(), Failure> {
        if self.of == 1 || !failure.is_of_input() {
            return Err(failure);
        }
        output::complain(&failure);
        self.broken += 1;
        Ok(())
    }

    /// Ends the command as it ran, or because inputs were left out: of both the latter is the exit code.
    pub(crate) fn finish(&self, ran: Result<(), Failure>) -> Result<(), Failure> {
        if self.broken == 0 {
            return ran;
        }
        match ran {
            Ok(()) => {}
            Err(failure @ (Failure::OutOfMemory(..) | Failure::DoesNotRun(..) | Failure::Capacity(..))) => {
                output::complain(&failure)
            }
            failure => return failure,
        }
        Err(Failure::Broken(self.broken.min(self.of), self.of))
    }
}
