//! The picture of the printed output: an SVG in the look of a terminal.
//!
//! Owns: the text so far, the colours, and the early check that the file can be written.

use crate::failure::Failure;
use crate::outside::printable;
use anstyle::RgbColor;
use anstyle_svg::{Palette, Term, VGA};
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

/// Light grey on almost black, as code is shown on dark pages.
const FOREGROUND: RgbColor = RgbColor(0xd0, 0xd7, 0xde);
const BACKGROUND: RgbColor = RgbColor(0x0d, 0x11, 0x17);
/// The bright colours that the tables use, made softer.
const PALETTE: Palette = {
    let mut colours = VGA.0;
    colours[9] = RgbColor(0xff, 0x7b, 0x72);
    colours[10] = RgbColor(0x56, 0xd3, 0x64);
    colours[11] = RgbColor(0xe3, 0xb3, 0x41);
    Palette(colours)
};

/// A picture to be saved as SVG.
pub(crate) struct Svg {
    path: PathBuf,
    text: String,
}

impl Svg {
    /// Makes a picture of this command line. Further lines are added later.
    ///
    /// # Errors
    /// The file cannot be written. An existing file stays until the picture is saved.
    pub(crate) fn new(path: &Path) -> Result<Self, Failure> {
        check_writable(path)?;
        Ok(Self { path: path.to_owned(), text: command(std::env::args_os()) + "\n" })
    }

    /// Adds lines, styled as on a terminal.
    pub(crate) fn add(&mut self, lines: &str) {
        self.text.push('\n');
        self.text.push_str(lines);
    }

    /// Writes the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn save(&self) -> Result<(), Failure> {
        let term = Term::new().palette(PALETTE).fg_color(FOREGROUND.into()).bg_color(BACKGROUND.into());
        let svg = term.render_svg(self.text.trim_end());
        fs::write(&self.path, svg).map_err(|error| Failure::Write { path: self.path.clone(), error })
    }
}

/// Checks that a file can be written, before the work whose result is written to it. Changes no file.
pub(crate) fn check_writable(path: &Path) -> Result<(), Failure> {
    let write = |error| Failure::Write { path: path.to_owned(), error };
    let existed = path.exists();
    OpenOptions::new().append(true).create(true).open(path).map_err(write)?;
    if !existed {
        fs::remove_file(path).map_err(write)?;
    }
    Ok(())
}

/// Returns the command line as the user would type it, without the options of the picture.
fn command(args: impl Iterator<Item = OsString>) -> String {
    let mut out = "$ seamalloc".to_owned();
    let mut args = args.skip(1);
    while let Some(arg) = args.next() {
        let arg = arg.to_string_lossy();
        if arg == "--svg" || arg == "--color" {
            args.next();
        } else if !arg.starts_with("--svg=") && !arg.starts_with("--color=") {
            out.push(' ');
            out.push_str(&printable(&arg));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_shown_without_the_picture_itself() {
        let line = "seamalloc stress --svg a.svg comb --color=always --device sim:h200 --svg=b.svg --lag 5";
        let shown = command(line.split(' ').map(OsString::from));
        assert_eq!(shown, "$ seamalloc stress comb --device sim:h200 --lag 5");
    }
}
