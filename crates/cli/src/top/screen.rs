//! The terminal of `top`: an alternate screen, and its keys.

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::style::Print;
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{execute, queue};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

/// The meaning of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Pause,
}

/// The alternate screen, which is shown until this object is dropped.
pub(super) struct Screen(());

impl Screen {
    pub(super) fn open() -> io::Result<Self> {
        enable_raw_mode()?;
        let screen = Self(());
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    /// Returns the width of the terminal in characters.
    pub(super) fn width(&self) -> usize {
        size().map_or(80, |(width, _)| usize::from(width))
    }

    /// Shows lines in place of the previous ones, as many as the screen has room for.
    pub(super) fn show(&self, text: &str) -> io::Result<()> {
        let height = size().map_or(24, |(_, height)| height);
        let mut out = io::stdout().lock();
        queue!(out, MoveTo(0, 0))?;
        for (row, line) in (0..height).zip(text.lines()) {
            queue!(out, MoveTo(0, row), Print(line), Clear(ClearType::UntilNewLine))?;
        }
        queue!(out, Clear(ClearType::FromCursorDown))?;
        out.flush()
    }

    /// Waits for a key with a meaning, for at most `time`. Returns `None` if there was none.
    pub(super) fn key(&self, time: Duration) -> io::Result<Option<Key>> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            let stdin = io::stdin();
            match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&left)) {
                Ok(0) => return Ok(None),
                // A signal arrived, for example because the size of the terminal changed.
                Err(rustix::io::Errno::INTR) => return Ok(None),
                Err(error) => return Err(error.into()),
                Ok(_) => {}
            }
            let mut pressed = [0; 16];
            let count = stdin.lock().read(&mut pressed)?;
            match pressed.get(..count).unwrap_or_default() {
                // The terminal is closed.
                [] => return Ok(Some(Key::Quit)),
                bytes => {
                    if let Some(key) = meaning(bytes) {
                        return Ok(Some(key));
                    }
                }
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal is closed, there is no screen to restore.
        let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

/// Returns the meaning of the terminal's bytes. Keys such as arrows send an escape and further bytes.
fn meaning(bytes: &[u8]) -> Option<Key> {
    const CTRL_C: u8 = 3;
    const ESCAPE: u8 = 27;
    match bytes {
        [b'q' | b'Q' | CTRL_C | ESCAPE] => Some(Key::Quit),
        [b'p' | b'P' | b' '] => Some(Key::Pause),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrow_is_no_escape() {
        assert_eq!((meaning(b"\x1b"), meaning(b"\x1b[A"), meaning(b" ")), (Some(Key::Quit), None, Some(Key::Pause)));
    }
}
