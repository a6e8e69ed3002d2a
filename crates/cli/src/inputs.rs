//! Several inputs of one command. A broken input is reported, and the others are processed.

use crate::failure::Failure;
use crate::output;
use std::path::{Path, PathBuf};

/// The number of inputs, and the number of those that could not be processed.
#[derive(Debug)]
pub(crate) struct Inputs {
    of: usize,
    broken: usize,
}

impl Inputs {
    /// Makes the count of `of` inputs, none of them broken.
    pub(crate) fn whole(of: usize) -> Self {
        Self { of, broken: 0 }
    }

    /// Reads all inputs before any run, so that all unreadable inputs are reported at the start.
    ///
    /// # Errors
    /// The error of a single input; [`Failure::Broken`] if none can be read.
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

    /// Processes each input. A broken input is reported and left out.
    ///
    /// # Errors
    /// The error of the only input, or an error that no input caused.
    pub(crate) fn each<'i, T>(
        &mut self,
        items: &'i [T],
        mut process: impl FnMut(&'i T) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        items.iter().try_for_each(|item| process(item).or_else(|failure| self.skip(failure)))
    }

    /// Returns the number of inputs, broken ones included.
    pub(crate) fn count(&self) -> usize {
        self.of
    }

    /// Reports why an input is left out.
    fn skip(&mut self, failure: Failure) -> Result<(), Failure> {
        if self.of == 1 || !failure.is_of_input() {
            return Err(failure);
        }
        output::complain(&failure);
        self.broken += 1;
        Ok(())
    }

    /// Ends the command with the result of the run. If inputs were left out, their failure takes precedence.
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
