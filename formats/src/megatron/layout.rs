//! `--pipeline-model-parallel-layout`: the parts of each stage in a line, such as `E|(t*4|)*7t*3,L`, where `E` is the
//! embedding, `t` a layer, `L` norm, head and loss; `x*n` and `(..)*n` repeat, commas mean nothing.

/// Longer than the layout of any model, written out.
const LONGEST: usize = 1 << 17;

/// Layers of each stage, in the order of the model.
///
/// # Errors
/// What is wrong, in words.
pub(super) fn read(text: &str) -> Result<Vec<u32>, String> {
    let parts: Vec<char> =
        text.chars().filter(|c| !c.is_whitespace() && !matches!(c, ',' | '"' | '\'' | '[' | ']')).collect();
    let mut at = 0;
    let whole = expand(&parts, &mut at, 0)?;
    if at < parts.len() {
        return Err("a parenthesis is closed that was not opened".to_owned());
    }
    let stages: Vec<&[char]> = whole.split(|part| *part == '|').collect();
    let last = stages.len() - 1;
    for (index, stage) in stages.iter().enumerate() {
        let count = |part| stage.iter().filter(|other| **other == part).count();
        if count('m') > 0 {
            return Err("layers that predict further tokens (m) are not counted".to_owned());
        }
        if count('E') != usize::from(index == 0) || count('L') != usize::from(index == last) {
            return Err("the embedding (E) is on the first stage and the loss (L) on the last, each once".to_owned());
        }
    }
    let layers = |stage: &&[char]| u32::try_from(stage.iter().filter(|part| **part == 't').count()).unwrap_or(u32::MAX);
    Ok(stages.iter().map(layers).collect())
}

/// Parts up to the end or to the parenthesis that closes.
fn expand(parts: &[char], at: &mut usize, depth: u32) -> Result<Vec<char>, String> {
    if depth > 4 {
        return Err("parentheses are nested too deeply".to_owned());
    }
    let mut out: Vec<char> = Vec::new();
    while let Some(part) = parts.get(*at).copied() {
        *at += 1;
        let piece = match part {
            '(' => {
                let inner = expand(parts, at, depth + 1)?;
                if parts.get(*at) != Some(&')') {
                    return Err("a parenthesis is not closed".to_owned());
                }
                *at += 1;
                inner
            }
            ')' => {
                *at -= 1;
                return Ok(out);
            }
            'E' | 't' | 'L' | 'm' | '|' => vec![part],
            other => return Err(format!("`{}` is no part of a stage", other.escape_debug())),
        };
        let mut times = 1;
        if parts.get(*at) == Some(&'*') {
            let digits: String = parts[*at + 1..].iter().take_while(|c| c.is_ascii_digit()).take(7).collect();
            *at += 1 + digits.len();
            times = digits.parse::<usize>().map_err(|_| "no number stands after *".to_owned())?;
        }
        if times.saturating_mul(piece.len().max(1)).saturating_add(out.len()) > LONGEST {
            return Err("it is longer than that of any model".to_owned());
        }
        out.extend(piece.iter().copied().cycle().take(piece.len() * times));
    }
    Ok(out)
}

/// The line of stages with so many layers.
pub(super) fn write(layers: &[u32]) -> String {
    let last = layers.len().saturating_sub(1);
    let stage = |(index, layers): (usize, &u32)| {
        let parts = [
            (index == 0).then(|| "E".to_owned()),
            (*layers > 0).then(|| format!("t*{layers}")),
            (index == last).then(|| "L".to_owned()),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(",")
    };
    layers.iter().enumerate().map(stage).collect::<Vec<_>>().join("|")
}

#[cfg(test)]
mod tests {
    use super::{read, write};

    #[test]
    fn layouts_are_read_and_written() {
        let check = |text: &str, expect: Result<&[u32], &str>| match (read(text), expect) {
            (Ok(found), Ok(expect)) => {
                assert_eq!(found, expect, "{text}");
                assert_eq!(read(&write(expect)).as_deref(), Ok(expect), "{text}");
            }
            (Err(found), Err(part)) => assert!(found.contains(part), "{text}: {found}"),
            (found, expect) => panic!("{text}: {found:?} where {expect:?} was expected"),
        };
        check("E|t*5|t*6|t,L", Ok(&[0, 5, 6, 1]));
        check("Ettt|(tt|)*3t,L", Ok(&[3, 2, 2, 2, 1]));
        check("E,t*2|(t*2|)*2L", Ok(&[2, 2, 2, 0]));
        check("EtttL", Ok(&[3]));
        check("t|E,t,L", Err("the embedding (E) is on the first stage"));
        check("E,t|t,m,L", Err("predict further tokens"));
        check("E,t|x,L", Err("`x` is no part"));
        check("E,(t|t,L", Err("is not closed"));
        check("E,t)|t,L", Err("was not opened"));
        check("E,t*|t,L", Err("no number"));
        check("E,(((t*999)*999)*999)*999,L", Err("longer than"));
        check(&"(".repeat(100_000), Err("too deeply"));
        check("", Err("the embedding"));
    }
}
