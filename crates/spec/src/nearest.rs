//! The name somebody probably meant.

/// The candidate with the smallest edit distance to `name`, if any is close enough to be a likely slip.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest_within(name, usize::MAX, candidates)
}

/// The same, at most so many edits away.
pub fn nearest_within<'a>(
    name: &str,
    most: usize,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    // Bounds the work: no name of ours is longer, and the distance is quadratic.
    let name: Vec<char> = name.trim().to_lowercase().chars().take(64).collect();
    if name.is_empty() {
        return None;
    }
    candidates
        .into_iter()
        .map(|candidate| (distance(&name, candidate), candidate))
        .filter(|(distance, candidate)| {
            let longer = candidate.chars().count().max(name.len());
            *distance <= longer.div_ceil(3).min(most)
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Edits (insert, delete, replace, swap of neighbours) that turn one word into the other.
fn distance(a: &[char], b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &y) in b.iter().enumerate() {
            let mut best = (last[j] + usize::from(x != y))
                .min(last[j + 1] + 1)
                .min(row[j] + 1);
            if i > 0 && j > 0 && x == b[j - 1] && a[i - 1] == y {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = last;
        last = row;
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_slips_and_nothing_else() {
        let names = ["python", "javascript", "typescript", "ruby", "go", "c", "r"];
        for (given, meant) in [
            ("pyton", Some("python")),
            ("pyhton", Some("python")),
            ("PYTHON3", Some("python")),
            ("javscript", Some("javascript")),
            ("typscript", Some("typescript")),
            ("rubby", Some("ruby")),
            ("cobol", None),
            ("", None),
            ("  ", None),
        ] {
            assert_eq!(nearest(given, names), meant, "{given}");
        }
        assert_eq!(nearest(&"x".repeat(1_000_000), names), None);
    }
}
