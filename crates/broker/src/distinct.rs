//! Lists in requests that name a thing more than once.

use std::collections::HashSet;
use std::hash::Hash;

/// The first item of each key. An answer may be a thousand times as long as what asks for it, so a request that names
/// one thing repeatedly must not get an answer for each time.
pub(crate) fn distinct<T, K: Eq + Hash>(
    items: impl IntoIterator<Item = T>,
    key: impl Fn(&T) -> K,
) -> impl Iterator<Item = T> {
    let mut seen = HashSet::new();
    items.into_iter().filter(move |item| seen.insert(key(item)))
}

/// The keys that occur more than once.
pub(crate) fn repeated<K: Eq + Hash + Clone>(keys: impl Iterator<Item = K>) -> HashSet<K> {
    let mut seen = HashSet::new();
    keys.filter(|key| !seen.insert(key.clone())).collect()
}
