//! MiniMalloc's csv: one buffer a line, with a header that names the columns.
//!
//! Owns: reading and writing the format, as `FromCsv` and `ToCsv` do in google/minimalloc's `src/converter.cc`
//! (Apache-2.0).
//!
//! ```text
//! id,lower,upper,size            in any order; live from lower until before upper
//! begin, start                   other names of lower
//! end                            the last moment, which is upper - 1; gaps then end at their last moment too
//! buffer, buffer_id              other names of id
//! alignment                      the offset is a multiple of this number
//! hint                           an offset to try first; -1: none
//! gaps                           3-5 7-9@0:16: no bytes are in use from 3 to 5, and only bytes 0 to 16 from 7 to 9
//! offset                         in the input: the offset that the buffer has in any case
//! ```

use crate::check::Plan;
use crate::problem::{Buffer, BufferError, Gap, MAX_BUFFERS, Problem};
use std::io::{self, BufRead, Write};

/// The longest line that is read, in bytes.
const MAX_LINE: u64 = 1 << 20;
/// Characters of a line that an error shows.
const SHOWN: usize = 40;

/// The errors of a csv of buffers.
#[derive(Debug, thiserror::Error)]
pub enum CsvError {
    /// The file cannot be read.
    #[error("{file}: {source}")]
    Io {
        /// The file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// The content differs from the expected format.
    #[error("{file}, line {line}: found {found}, expected {expected}")]
    Malformed {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The content found.
        found: String,
        /// The content expected.
        expected: String,
    },
    /// A buffer breaks a rule.
    #[error("{file}, line {line}: {source}")]
    Rule {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The rule.
        source: BufferError,
    },
    /// The file has no buffer.
    #[error("{file}: holds no buffer; expected at least one behind the header id,lower,upper,size")]
    Empty {
        /// The file.
        file: String,
    },
}

/// The meaning of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Id,
    Lower,
    Upper,
    Size,
    Alignment,
    Hint,
    Gaps,
    Offset,
}

/// The names of columns that are written.
const NAMES: [(&str, Column); 8] = [
    ("id", Column::Id),
    ("lower", Column::Lower),
    ("upper", Column::Upper),
    ("size", Column::Size),
    ("alignment", Column::Alignment),
    ("hint", Column::Hint),
    ("gaps", Column::Gaps),
    ("offset", Column::Offset),
];
/// Further names of columns that are read.
const OTHER_NAMES: [(&str, Column); 5] = [
    ("buffer", Column::Id),
    ("buffer_id", Column::Id),
    ("begin", Column::Lower),
    ("start", Column::Lower),
    ("end", Column::Upper),
];
/// Columns that every file has.
const REQUIRED: &str = "id, lower, upper and size";

/// Returns whether a file that begins like this is a csv of buffers, and not a trace: a column of its first line has a
/// known name.
#[must_use]
pub fn is_csv(beginning: &[u8]) -> bool {
    let line = beginning.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut names = NAMES.iter().chain(&OTHER_NAMES).map(|(name, _)| name.as_bytes());
    names.any(|name| line.trim_ascii_end().split(|byte| *byte == b',').any(|column| column == name))
}

/// Returns the columns of a header, and whether the upper bound is inclusive (a column `end`). The error is the text
/// found and the text expected.
fn columns(line: &str) -> Result<(Vec<Column>, bool), (String, String)> {
    let mut columns = Vec::new();
    for name in line.split(',') {
        let known = NAMES.iter().chain(&OTHER_NAMES).find(|(known, _)| *known == name);
        let Some(&(_, column)) = known else {
            let names: Vec<_> = NAMES.iter().map(|(name, _)| *name).collect();
            return Err((
                format!("a column {}", excerpt(name)),
                format!("a header with columns of {}", names.join(",")),
            ));
        };
        if columns.contains(&column) {
            return Err((format!("the column {} a second time", excerpt(name)), "each column once".to_owned()));
        }
        columns.push(column);
    }
    for (name, column) in &NAMES[..4] {
        if !columns.contains(column) {
            return Err((format!("no column {name}"), format!("a header with columns {REQUIRED}")));
        }
    }
    Ok((columns, line.split(',').any(|name| name == "end")))
}

/// Reads a problem named `name`. Errors name the file `file`.
///
/// # Errors
/// [`CsvError`], with the line and the expected content.
pub fn read_csv(name: &str, file: &str, mut text: impl BufRead) -> Result<Problem, CsvError> {
    let mut reader = Reader { file, line: 0 };
    let mut content = Vec::new();
    let mut header: Option<(Vec<Column>, bool)> = None;
    let (mut buffers, mut lines) = (Vec::new(), Vec::new());
    loop {
        content.clear();
        let read = io::Read::take(&mut text, MAX_LINE).read_until(b'\n', &mut content);
        let length = read.map_err(|source| CsvError::Io { file: file.to_owned(), source })?;
        if length == 0 {
            break;
        }
        reader.line += 1;
        if length as u64 == MAX_LINE {
            return Err(reader.malformed("a longer line".to_owned(), format!("at most {MAX_LINE} bytes")));
        }
        let Ok(line) = std::str::from_utf8(&content) else {
            return Err(reader.malformed(format!("\"{}\"", content.escape_ascii()), "UTF-8 text"));
        };
        let line = line.trim_end_matches(['\n', '\r']);
        if line.is_empty() {
            continue;
        }
        match &header {
            None => header = Some(columns(line).map_err(|(found, expected)| reader.malformed(found, expected))?),
            Some((columns, is_inclusive)) => {
                buffers.push(reader.buffer(line, columns, *is_inclusive)?);
                lines.push(reader.line);
                if buffers.len() > MAX_BUFFERS {
                    return Err(reader.malformed("one more buffer".to_owned(), format!("at most {MAX_BUFFERS}")));
                }
            }
        }
    }
    if buffers.is_empty() {
        return Err(CsvError::Empty { file: file.to_owned() });
    }
    Problem::new(name, buffers).map_err(|error| CsvError::Rule {
        file: file.to_owned(),
        line: lines.get(error.index).copied().unwrap_or(0),
        source: error.error,
    })
}

struct Reader<'a> {
    file: &'a str,
    line: u64,
}

impl Reader<'_> {
    fn malformed(&self, found: impl Into<String>, expected: impl Into<String>) -> CsvError {
        CsvError::Malformed {
            file: self.file.to_owned(),
            line: self.line,
            found: found.into(),
            expected: expected.into(),
        }
    }

    fn buffer(&self, line: &str, columns: &[Column], is_inclusive: bool) -> Result<Buffer, CsvError> {
        let fields: Vec<&str> = line.split(',').collect();
        if fields.len() != columns.len() {
            let expected = format!("{}, as the header has", columns.len());
            return Err(self.malformed(format!("{} fields", fields.len()), expected));
        }
        let mut buffer = Buffer::new("", 0, 0, 0);
        let end = |moment: i64| moment.checked_add(i64::from(is_inclusive));
        for (column, field) in columns.iter().zip(fields) {
            match column {
                Column::Id => buffer.id = field.to_owned(),
                Column::Lower => buffer.lower = self.number(field, "a moment, a whole number")?,
                Column::Upper => {
                    let upper = end(self.number(field, "a moment, a whole number")?);
                    buffer.upper = upper.ok_or_else(|| self.malformed(excerpt(field), "an earlier moment"))?;
                }
                Column::Size => buffer.size = self.number(field, "a size in bytes")?,
                Column::Alignment => buffer.alignment = self.number(field, "an alignment in bytes")?,
                Column::Offset => buffer.fixed = Some(self.number(field, "an offset in bytes")?),
                Column::Hint if field == "-1" => buffer.hint = None,
                Column::Hint => buffer.hint = Some(self.number(field, "an offset in bytes, or -1")?),
                Column::Gaps => {
                    let gaps = field.split(' ').filter(|gap| !gap.is_empty());
                    let gap = |text| {
                        let gap = gap(text).and_then(|gap| Some(Gap { upper: end(gap.upper)?, ..gap }));
                        gap.ok_or_else(|| self.malformed(excerpt(text), "gaps such as 3-5 or 3-5@0:16"))
                    };
                    buffer.gaps = gaps.map(gap).collect::<Result<_, _>>()?;
                }
            }
        }
        Ok(buffer)
    }

    fn number<T: std::str::FromStr>(&self, field: &str, expected: &str) -> Result<T, CsvError> {
        field.parse().map_err(|_| self.malformed(excerpt(field), expected))
    }
}

/// Parses a gap: `3-5` or `3-5@0:16`.
fn gap(text: &str) -> Option<Gap> {
    let (moments, window) = match text.split_once('@') {
        Some((moments, window)) => (moments, Some(window)),
        None => (text, None),
    };
    let (lower, upper) = moments.split_once('-')?;
    let window = match window {
        Some(window) => {
            let (low, high) = window.split_once(':')?;
            Some((low.parse().ok()?, high.parse().ok()?))
        }
        None => None,
    };
    Some(Gap { lower: lower.parse().ok()?, upper: upper.parse().ok()?, window })
}

fn excerpt(text: &str) -> String {
    let head: String = text.chars().take(SHOWN).collect();
    let dots = if head.len() < text.len() { "…" } else { "" };
    format!("\"{}{dots}\"", head.escape_debug())
}

/// Writes a problem with the offsets of a plan: MiniMalloc's output.
///
/// # Errors
/// `out` cannot be written.
pub fn write_csv(problem: &Problem, plan: &Plan, out: impl Write) -> io::Result<()> {
    let mut out = io::BufWriter::new(out);
    let buffers = problem.buffers();
    let has_alignment = buffers.iter().any(|buffer| buffer.alignment != 1);
    let has_hint = buffers.iter().any(|buffer| buffer.hint.is_some());
    let has_gaps = buffers.iter().any(|buffer| !buffer.gaps.is_empty());
    let is_written = |column| match column {
        Column::Alignment => has_alignment,
        Column::Hint => has_hint,
        Column::Gaps => has_gaps,
        _ => true,
    };
    let columns: Vec<_> = NAMES.into_iter().filter(|(_, column)| is_written(*column)).collect();
    let names: Vec<_> = columns.iter().map(|(name, _)| *name).collect();
    writeln!(out, "{}", names.join(","))?;
    for (buffer, offset) in buffers.iter().zip(&plan.offsets) {
        for (index, (_, column)) in columns.iter().enumerate() {
            if index > 0 {
                write!(out, ",")?;
            }
            match column {
                Column::Id => write!(out, "{}", buffer.id)?,
                Column::Lower => write!(out, "{}", buffer.lower)?,
                Column::Upper => write!(out, "{}", buffer.upper)?,
                Column::Size => write!(out, "{}", buffer.size)?,
                Column::Alignment => write!(out, "{}", buffer.alignment)?,
                Column::Hint => write!(out, "{}", buffer.hint.map_or("-1".to_owned(), |hint| hint.to_string()))?,
                Column::Gaps => write!(out, "{}", gaps(&buffer.gaps))?,
                Column::Offset => write!(out, "{offset}")?,
            }
        }
        writeln!(out)?;
    }
    out.flush()
}

fn gaps(gaps: &[Gap]) -> String {
    let text = |gap: &Gap| {
        let window = gap.window.map(|(low, high)| format!("@{low}:{high}")).unwrap_or_default();
        format!("{}-{}{window}", gap.lower, gap.upper)
    };
    gaps.iter().map(text).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Problem, CsvError> {
        read_csv("p", "p.csv", text.as_bytes())
    }

    #[test]
    fn columns_may_stand_in_any_order_and_under_other_names() {
        let problem = read("size,buffer_id,start,end\n4,b1,0,2\r\n\n8,b2,3,8\n").unwrap();
        assert_eq!(problem.buffers(), [Buffer::new("b1", 0, 3, 4), Buffer::new("b2", 3, 9, 8)]);
        let problem = read("id,lower,upper,size,alignment,hint,gaps,offset\nb,0,9,4,2,-1,3-5 7-9@1:2,6\n").unwrap();
        let gaps = vec![Gap { lower: 3, upper: 5, window: None }, Gap { lower: 7, upper: 9, window: Some((1, 2)) }];
        let expected = Buffer { alignment: 2, gaps, fixed: Some(6), ..Buffer::new("b", 0, 9, 4) };
        assert_eq!(problem.buffers(), [expected]);
        let inclusive = read("id,lower,end,size,gaps\nb,0,9,4,3-5\n").unwrap();
        assert_eq!(inclusive.buffers()[0].gaps, [Gap { lower: 3, upper: 6, window: None }]);
    }

    #[test]
    fn a_known_name_in_the_first_line_tells_it_from_a_trace() {
        assert!(is_csv(b"id,lower\n") && is_csv(b"colour,size\r\n1,2\n"));
        assert!(!is_csv(b"a,1,512,0\nsize\n") && !is_csv(b"") && !is_csv(b"# {}\nid\n") && !is_csv(b"\x80\x02}"));
    }

    #[test]
    fn what_is_written_is_read_again() {
        let text = "id,lower,upper,size,alignment,hint,gaps,offset\nb,-3,9,4,2,8,3-5 7-9@1:2,6\nc,9,10,1,1,-1,,0\n";
        let problem = read(text).unwrap();
        let mut out = Vec::new();
        write_csv(&problem, &Plan { offsets: vec![6, 0], peak: 10 }, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), text);
        let mut out = Vec::new();
        let plain = read("id,lower,upper,size\nb,0,1,2\n").unwrap();
        write_csv(&plain, &Plan { offsets: vec![7], peak: 9 }, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "id,lower,upper,size,offset\nb,0,1,2,7\n");
    }

    #[test]
    fn errors_name_the_line_and_what_was_expected() {
        for (text, parts) in [
            ("", &["holds no buffer"][..]),
            ("id,lower,upper,size\n", &["holds no buffer"]),
            ("id,lower,upper\n", &["line 1", "no column size"]),
            ("id,lower,upper,size,colour\n", &["line 1", "\"colour\"", "alignment"]),
            ("id,lower,begin,upper,size\n", &["line 1", "\"begin\" a second time"]),
            ("id,lower,upper,size\nb,0,1\n", &["line 2", "3 fields", "expected 4"]),
            ("id,lower,upper,size\nb,0,x,4\n", &["line 2", "\"x\"", "a moment"]),
            ("id,lower,upper,size\nb,0,1,-4\n", &["line 2", "\"-4\"", "a size in bytes"]),
            ("id,lower,upper,size\n\na,0,1,4\nb,1,1,4\n", &["line 4", "buffer b", "an end behind"]),
            ("id,lower,upper,size,gaps\nb,0,9,4,3\n", &["line 2", "\"3\"", "3-5@0:16"]),
            ("id,lower,end,size\nb,0,9223372036854775807,4\n", &["line 2", "an earlier moment"]),
            ("id,lower,upper,size,hint\nb,0,9,4,-2\n", &["line 2", "\"-2\"", "or -1"]),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{text:?}: {error}");
        }
        assert!(read_csv("p", "p.csv", &b"id,\xff\n"[..]).unwrap_err().to_string().contains("UTF-8"));
        let long = "x".repeat(2 << 20);
        assert!(read(&long).unwrap_err().to_string().contains("longer line"));
    }
}
