//! Which name a caller may have meant.

/// A name longer than this has no nearest one: it comes from a peer, and comparing costs its length times that of each
/// candidate.
const LETTERS_MAX: usize = 64;

/// The candidate nearest to `name`, when it is near enough to be meant: at most two letters and one for each four of `name`
/// put in, left out, changed or swapped with their neighbour. How many these are comes with it.
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<(usize, &'a str)> {
    let letters = name.chars().count();
    if letters > LETTERS_MAX {
        return None;
    }
    let near = candidates.map(|candidate| (strsim::osa_distance(name, candidate), candidate)).min()?;
    (near.0 <= 2 + letters / 4).then_some(near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_found_and_another_word_is_not() {
        let near = |name| nearest(name, ["linger.ms", "batch.size", "acks"].into_iter());
        assert_eq!(near("linger.sm"), Some((1, "linger.ms")));
        assert_eq!(near("lingerms"), Some((1, "linger.ms")));
        assert_eq!(near("batchsize"), Some((1, "batch.size")));
        assert_eq!(near("isolation.level"), None);
        assert_eq!(near(&"l".repeat(1 << 20)), None);
        assert_eq!(nearest("acks", std::iter::empty()), None);
    }
}
