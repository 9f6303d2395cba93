//! Slurm's short form of many names: `srv[1101-1108,1110]`, `rack[1-2]node[01-18],login1`.

/// Every name, in the order written. Numbers keep their leading zeros.
///
/// # Errors
/// What is wrong in words: a bracket that is not closed, a range that is no range, no name at all, or more than `most`
/// names.
pub(super) fn expand(text: &str, most: usize) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for part in split(text)? {
        let expanded = product(part, most)?;
        if names.len() + expanded.len() > most {
            return Err(format!("`{text}` has more than {most} names"));
        }
        names.extend(expanded);
    }
    Ok(names)
}

/// The parts between commas outside of brackets.
fn split(text: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, character) in text.char_indices() {
        match character {
            '[' if inside => return Err(format!("`{text}` opens a bracket in a bracket")),
            ']' if !inside => return Err(format!("`{text}` closes a bracket that is not open")),
            '[' => inside = true,
            ']' => inside = false,
            ',' if !inside => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(format!("`{text}` does not close its bracket"));
    }
    parts.push(&text[start..]);
    if parts.iter().any(|part| part.is_empty()) {
        return Err(format!("`{text}` has an empty name"));
    }
    Ok(parts)
}

/// One part, every bracket written out.
fn product(part: &str, most: usize) -> Result<Vec<String>, String> {
    let mut names = vec![String::new()];
    let mut rest = part;
    while let Some((before, after)) = rest.split_once('[') {
        let (ranges, behind) = after.split_once(']').expect("brackets were matched");
        let numbers = numbers(ranges, part, most)?;
        if names.len().saturating_mul(numbers.len()) > most {
            return Err(format!("`{part}` has more than {most} names"));
        }
        let all = |name: &String| numbers.iter().map(|n| format!("{name}{before}{n}")).collect::<Vec<_>>();
        names = names.iter().flat_map(all).collect();
        rest = behind;
    }
    names.iter_mut().for_each(|name| name.push_str(rest));
    Ok(names)
}

/// `1-3,07` is 1, 2, 3, 07.
fn numbers(ranges: &str, part: &str, most: usize) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |digits: &str| digits.parse::<u64>().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()));
        let (Some(from), Some(to)) = (number(first), number(last)) else {
            return Err(format!("`{range}` in `{part}` is no number and no range of numbers, such as 1-8"));
        };
        if from > to {
            return Err(format!("`{range}` in `{part}` runs backwards: did you mean {last}-{first}?"));
        }
        if to - from >= most as u64 {
            return Err(format!("`{part}` has more than {most} names"));
        }
        all.extend((from..=to).map(|n| format!("{n:0width$}", width = first.len())));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: Result<&[&str], &str>) {
        match (expand(text, 100), expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect, "{text}"),
            (Err(found), Err(needle)) => assert!(found.contains(needle), "no {needle:?} in {found:?}"),
            (found, expect) => panic!("{text}: {found:?} where {expect:?} was expected"),
        }
    }

    #[test]
    fn short_forms_are_written_out() {
        check("a", Ok(&["a"]));
        check("a,b", Ok(&["a", "b"]));
        check("n[8-10,3]", Ok(&["n8", "n9", "n10", "n3"]));
        check("n[08-10]", Ok(&["n08", "n09", "n10"]));
        check("r[1-2]n[1-2]x,z", Ok(&["r1n1x", "r1n2x", "r2n1x", "r2n2x", "z"]));
        check("switch.1.[1-2]", Ok(&["switch.1.1", "switch.1.2"]));
        check(
            "n[1-100]",
            Ok(&(1..=100).map(|n| format!("n{n}")).collect::<Vec<_>>().iter().map(String::as_str).collect::<Vec<_>>()),
        );
    }

    #[test]
    fn wrong_ones_are_refused() {
        check("", Err("an empty name"));
        check("a,,b", Err("an empty name"));
        check("n[1-8", Err("does not close"));
        check("n1-8]", Err("not open"));
        check("n[1[2]]", Err("a bracket in a bracket"));
        check("n[a-b]", Err("`a-b` in `n[a-b]` is no number"));
        check("n[+1-2]", Err("is no number"));
        check("n[]", Err("is no number"));
        check("n[8-1]", Err("did you mean 1-8?"));
        check("n[1-101]", Err("more than 100 names"));
        check("n[0-18446744073709551615]", Err("more than 100 names"));
        check("a[1-11]b[1-11]", Err("more than 100 names"));
        check("a[1-60],b[1-60]", Err("more than 100 names"));
    }
}
