//! What the examples of speed have in common: cases in turns, and what is printed of them.

use std::hint::black_box;
use std::time::Instant;

/// As many rows as a batch of a consumer has, about.
pub(crate) const ARRAY_ROWS: usize = 10_000;

/// A name, and what decodes so many rows.
pub(crate) type Case<'a> = (&'a str, &'a dyn Fn() -> usize);

/// The arguments: how many rows, how many rounds, and a part of the names of the cases.
pub(crate) fn arguments() -> (usize, usize, String) {
    let mut arguments = std::env::args().skip(1);
    let mut number = |or: usize| arguments.next().map_or(or, |text| text.parse().unwrap());
    let (rows, rounds) = (number(200_000), number(9));
    (rows, rounds, arguments.next().unwrap_or_default())
}

/// Runs cases in turns and prints million rows a second, medians for people and all rounds as JSON.
pub(crate) fn in_turns(cases: &[Case<'_>], rows: usize, rounds: usize, only: &str) {
    let cases: Vec<_> = cases.iter().filter(|(name, _)| name.contains(only)).collect();
    let mut rates = vec![Vec::new(); cases.len()];
    for _ in 0..rounds {
        for ((_, run), rates) in cases.iter().zip(&mut rates) {
            let begun = Instant::now();
            assert_eq!(black_box(run()), rows);
            #[allow(clippy::cast_precision_loss, reason = "a rate")]
            rates.push(rows as f64 / begun.elapsed().as_secs_f64() / 1e6);
        }
    }
    let all: Vec<_> =
        cases.iter().zip(&rates).map(|((name, _), rates)| format!("\"{name}\": {rates:?}")).collect();
    for ((name, _), mut rates) in cases.iter().zip(rates) {
        rates.sort_by(f64::total_cmp);
        println!("{name:<26} {:6.2} M rows/s (best {:.2})", rates[rates.len() / 2], rates[rates.len() - 1]);
    }
    println!("{{{}}}", all.join(", "));
}
