//! Where figures stand, for whoever wants to look them up.

/// The public part of a reference: without the numbers that a private copy of a document has (`(copy id 17)`, `via copy id
/// 17`), which lead nobody anywhere. What nothing is left of is replaced by the place in the document.
pub(super) fn public(reference: &str, place: &str) -> String {
    let mut kept = String::new();
    let mut rest = reference;
    while let Some(open) = rest.find('(') {
        let close = rest[open..].find(')').map_or(rest.len(), |length| open + length + 1);
        let inside = &rest[open..close];
        kept.push_str(&rest[..open]);
        if names_a_copy(inside) {
            kept.truncate(kept.trim_end().len());
        } else {
            kept.push_str(inside);
        }
        rest = &rest[close..];
    }
    kept.push_str(rest);
    let clause = |part: &str| {
        let end = part.find("via ").filter(|at| names_a_copy(&part[*at..])).unwrap_or(part.len());
        part[..end].trim().to_owned()
    };
    let clauses: Vec<String> = kept.split(';').map(clause).filter(|clause| !clause.is_empty()).collect();
    if clauses.is_empty() { place.to_owned() } else { clauses.join("; ") }
}

/// Whether a text says `id` and a number.
fn names_a_copy(text: &str) -> bool {
    let words: Vec<&str> = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    words.windows(2).any(|pair| pair[0] == "id" && pair[1].bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::public;

    #[test]
    fn numbers_of_private_copies_are_left_out() {
        let check = |reference: &str, expect: &str| assert_eq!(public(reference, "Table 3"), expect, "{reference}");
        check("images/a.png (git history) + run.sh", "images/a.png (git history) + run.sh");
        check("arXiv 1 Table 5 (copy id 69); x/y.json", "arXiv 1 Table 5; x/y.json");
        check("arXiv 1 Table 2 (read as text, copy id 55)", "arXiv 1 Table 2");
        check("arXiv 1 Table 5 (copy id 40 offset 2; sizes in id 6)", "arXiv 1 Table 5");
        check("arXiv 1 via copy id 71", "arXiv 1");
        check("via copy id 71; compare b.csv", "compare b.csv");
        check("via copy id 71", "Table 3");
        check("README.md:12", "README.md:12");
        check("a (b", "a (b");
        check("", "Table 3");
    }
}
