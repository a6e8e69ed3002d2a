//! The command line by which a process identifies itself to others.

/// Returns the command line of this process, cut to `most` bytes. Control characters become spaces.
#[must_use]
pub fn command_line(most: usize) -> String {
    let mut all = String::new();
    for argument in std::env::args_os() {
        if !all.is_empty() {
            all.push(' ');
        }
        all.extend(argument.to_string_lossy().chars().map(|ch| if ch.is_control() { ' ' } else { ch }));
        if all.len() > most {
            break;
        }
    }
    let end = (0..=most.min(all.len())).rev().find(|end| all.is_char_boundary(*end));
    all.truncate(end.unwrap_or(0));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_begins_with_the_program_and_is_cut() {
        let program = std::env::args_os().next().unwrap().to_string_lossy().into_owned();
        let whole = command_line(usize::MAX);
        assert!(whole.starts_with(&program), "{whole}");
        for most in [0, 1, 5, program.len()] {
            let cut = command_line(most);
            assert!(cut.len() <= most && whole.starts_with(&cut), "{most}: {cut}");
        }
        assert_eq!(command_line(program.len()), program);
    }
}
