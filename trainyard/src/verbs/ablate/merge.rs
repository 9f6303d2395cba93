//! Shards of an ablation, put together.

use std::path::{Path, PathBuf};

use ir::Problem;

use super::definition::Definition;
use super::store::{CELLS, Cells, few, finish, read_cells, read_definition};
use super::whole;
use crate::results::AblateResult;
use crate::{Error, Output};

/// Puts the cells of shards together and writes what an ablation in one piece would have written.
///
/// # Errors
/// [`Error::Input`] if the folders are of different ablations, disagree on a cell, or lack some: each by name.
/// [`Error::Files`] with what cannot be read or written.
pub fn merge_ablations(folders: &[PathBuf], out: &Path) -> Result<AblateResult, Error> {
    let canonical = |folder: &Path| std::fs::canonicalize(folder).ok();
    if let Some(same) = folders.iter().find(|folder| canonical(folder).is_some_and(|path| canonical(out) == Some(path)))
    {
        let problem = Problem::new(same.display().to_string(), "is to be merged, and merged into");
        return Err(Error::problem(problem.hint("give another --out")));
    }
    drop(Output::open(out)?);
    let parts: Vec<(&PathBuf, Definition)> =
        folders.iter().map(|folder| Ok((folder, read_definition(folder)?))).collect::<Result<_, Error>>()?;
    let Some((first, definition)) = parts.first() else {
        return Err(Error::problem(Problem::new("ablate merge", "there is no folder to merge")));
    };
    let mut problems: Vec<Problem> = Vec::new();
    for (folder, other) in &parts[1..] {
        let differences = definition.differences(other);
        if !differences.is_empty() {
            let message = format!("is of another ablation than {}: {}", first.display(), differences.join("; "));
            problems.push(Problem::new(folder.display().to_string(), message));
        }
    }
    if !problems.is_empty() {
        return Err(Error::input(problems));
    }
    let definition = Definition { shard: None, ..definition.clone() };
    let cells = join(&parts, &definition)?;
    let files = finish(out, &definition, &cells)?;
    Ok(whole(&definition, &cells, &files))
}

/// The cells of all parts.
fn join(parts: &[(&PathBuf, Definition)], definition: &Definition) -> Result<Cells, Error> {
    let all = definition.all();
    // By place: the cell, and the folder that it comes from.
    let mut cells = Cells::new();
    let mut from: Vec<Option<&PathBuf>> = vec![None; all.len()];
    let mut problems = Vec::new();
    for (folder, part) in parts {
        let own = part.own().map_err(Error::problem)?;
        let (read, _) = read_cells(&folder.join(CELLS), part, &own)?;
        for (place, cell) in read {
            match (cells.get(&place), from[place]) {
                (Some(known), Some(other)) if *known != cell => {
                    let message = format!("differs between {} and {}", other.display(), folder.display());
                    problems.push(Problem::new(definition.words(&all[place]), message));
                }
                (Some(_), _) => {}
                (None, _) => {
                    cells.insert(place, cell);
                    from[place] = Some(folder);
                }
            }
        }
    }
    let given: Vec<&str> = parts.iter().map(|(_, part)| part.shard.as_deref().unwrap_or("the whole")).collect();
    for (place, wanted) in all.iter().enumerate().filter(|(place, _)| !cells.contains_key(place)) {
        let shards = parts.iter().find_map(|(_, part)| part.shard.as_deref()?.parse::<super::Shard>().ok());
        let of = shards
            .map_or_else(String::new, |shard| format!(" of shard {}/{}", place as u64 % shard.count + 1, shard.count));
        let hint = format!("given: {}; run the rest, or again with the same --out: it goes on", given.join(", "));
        problems.push(Problem::new(definition.words(wanted), format!("the cell{of} is missing")).hint(hint));
    }
    if problems.is_empty() { Ok(cells) } else { Err(Error::input(few(problems, "cells"))) }
}
